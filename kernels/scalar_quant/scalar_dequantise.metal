// One thread an element at a time.
const ulong elements = ulong(sizes[0]);
const ulong threads = ulong(sizes[1]);
for (ulong i = thread_position_in_grid.x; i < elements; i += threads) {
    y[i] = T(codebook[codes[i]]);
}
