// One thread an element at a time.
const ulong elements = ulong(sizes[0]);
const ulong threads = ulong(sizes[1]);
for (ulong i = thread_position_in_grid.x; i < elements; i += threads) {
    codes[i] = uint8_t(code_of<BITS>(thresholds, float(y[i])));
}
