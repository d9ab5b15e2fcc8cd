// One thread a code; a code of `step` rows at a time.
const uint n = uint(sizes[0]);
const uint words = uint(sizes[1]);
const uint rows = uint(sizes[2]);
const uint step = uint(sizes[3]);
const uint index = thread_position_in_grid.x;
const uint j = index % n;
const uint first = index / n;
for (ulong row = first; first < step && row < rows; row += step) {
    codes[row * n + j] = T(unpacked_code<BITS>(packed + row * words, j));
}
