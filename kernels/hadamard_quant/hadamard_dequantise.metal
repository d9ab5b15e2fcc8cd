// One simdgroup a vector, VECTORS of them a threadgroup, each in its own part of the threadgroup's memory.
threadgroup float rows[VECTORS * D];
constexpr int N = D / M;
constexpr int EACH = (D + 31) / 32;
constexpr int LOWER = SECOND + int(SECOND == 0);  // not 0, for what is compiled and not run
constexpr uint WORDS = (D * FIRST + 31) / 32;
constexpr uint MORE = (D * LOWER + 31) / 32;
const uint lane = thread_index_in_simdgroup;
const uint slot = simdgroup_index_in_threadgroup;
const uint vector = threadgroup_position_in_grid.x * VECTORS + slot;
const bool is_there = vector < uint(sizes[0]);
const ulong at = is_there ? vector : 0u;  // a simdgroup without a vector goes along with the first and writes nothing
threadgroup float* row = rows + slot * D;

const uint stored = EMBEDDED ? first[at * WORDS + WORDS - 1] >> 16 : uint(scales[EMBEDDED ? 0 : at]);
const float scale = read_scale(stored);
float v[EACH];
for (int i = 0; i < EACH; i++) {
    const uint j = i * 32 + lane;
    if (j < D) {
        uint code = unpacked_code<FIRST>(first + at * WORDS, j);
        if (SECOND > 0) {
            code = (code << SECOND) | unpacked_code<LOWER>(second + at * MORE, j);
        }
        v[i] = codebook[code];
    }
}
for (int turn = ROUNDS - 1; turn >= 0; turn--) {
    for (int i = 0; i < EACH; i++) {
        const uint j = i * 32 + lane;
        if (j < D) {
            row[j] = v[i];
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    within_blocks<M, N>(row, lane);
    for (int i = 0; i < EACH; i++) {
        const uint j = i * 32 + lane;
        if (j < D) {
            v[i] = across_blocks<M, N>(row, core, j) * float(signs[turn * D + j]);
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}
for (int i = 0; i < EACH; i++) {
    const uint j = i * 32 + lane;
    if (is_there && j < D) {
        y[at * D + j] = T(v[i] * scale);
    }
}
