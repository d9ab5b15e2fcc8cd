// The Hadamard transform of vectors of D elements, each by a threadgroup of D threads.
threadgroup float buf[D];
const uint i = thread_index_in_threadgroup;
const uint row = threadgroup_position_in_grid.x;
buf[i] = x[row * D + i];
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint stride = 1; stride < D; stride *= 2) {
    const bool upper = (i & stride) != 0;
    const float own = buf[i];
    const float other = buf[i ^ stride];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    buf[i] = upper ? other - own : own + other;
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
y[row * D + i] = buf[i];
