// One thread an element at a time.
const uint n = uint(sizes[0]);
const uint entries = uint(sizes[1]);
const ulong head = threadgroup_position_in_grid.y;
const ulong elements = ulong(n) * SUB_DIM;
const ulong book = SHARED ? 0u : head * entries * SUB_DIM;
const ulong threads = ulong(sizes[2]);
for (ulong i = thread_position_in_grid.x; i < elements; i += threads) {
    const uint code = uint(codes[head * n + i / SUB_DIM]);
    y[head * elements + i] = float(codebook[book + ulong(code) * SUB_DIM + i % SUB_DIM]);
}
