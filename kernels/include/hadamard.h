// The orthonormal Hadamard transform of a row of M * N values, N = 2^k, by one simdgroup: H = H_M (x) H_N / sqrt(M * N).

// The factor H_N, not normalised, in place on each of the M blocks of N neighbours. Threads must have met since the row
// was written; they have met again when it returns.
template <int M, int N, typename Row>
inline void within_blocks(Row row, uint lane) {
    for (uint stride = 1; stride < N; stride *= 2) {
        for (uint pair = lane; pair < M * N / 2; pair += 32) {
            const uint low = 2 * pair - (pair & (stride - 1));
            const float a = row[low];
            const float b = row[low + stride];
            row[low] = a + b;
            row[low + stride] = a - b;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Element j of the factor H_M applied across blocks, normalised. Bit a of core[i] is set where H_M's element (i, a) is
// -1: the rows of H_M for the transform, its columns for the inverse.
template <int M, int N, typename Row, typename Core>
inline float across_blocks(Row row, Core core, uint j) {
    const uint minus = core[j / N];
    float sum = 0.0f;
    for (uint a = 0; a < M; a++) {
        const float value = row[a * N + j % N];
        sum += ((minus >> a) & 1u) != 0u ? -value : value;
    }
    return sum * (1.0f / metal::sqrt(float(M * N)));
}
