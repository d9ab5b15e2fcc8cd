// One thread a word; a word of `step` rows at a time.
const uint n = uint(sizes[0]);
const uint words = uint(sizes[1]);
const uint rows = uint(sizes[2]);
const uint step = uint(sizes[3]);
const uint index = thread_position_in_grid.x;
const uint word = index % words;
const uint first = index / words;
for (ulong row = first; first < step && row < rows; row += step) {
    packed[row * words + word] = packed_word<BITS>(codes + row * n, n, word, 0u);
}
