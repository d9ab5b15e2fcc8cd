// <x, c> - |c|^2 / 2 is largest of the entry c nearest to x. A thread holds EACH sub-vectors, or, where SPLIT is 32, a
// simdgroup holds one and its lanes share out the entries, which go through the threadgroup's memory. In units of a
// power of two near the largest element no product overflows or vanishes, and nothing is rounded.
constexpr int THREADS = 128;
constexpr int SLOTS = THREADS / SPLIT;
threadgroup float tile[TILE * SUB_DIM];
threadgroup float half_norms[TILE];
const uint thread_index = thread_position_in_threadgroup.x;
const uint n = uint(sizes[0]);
const uint entries = uint(sizes[1]);
const uint head = threadgroup_position_in_grid.y;
const ulong start = ulong(threadgroup_position_in_grid.x) * (SLOTS * EACH) + thread_index / SPLIT;
const uint book_exponent = exponent_of(magnitude(largest[head]));

float elements[EACH * SUB_DIM];
float weights[EACH];  // of the entries' halved squared norms
float best[EACH];
uint nearest[EACH];
for (int i = 0; i < EACH; i++) {
    uint top = 0;
    for (int j = 0; j < SUB_DIM; j++) {
        const ulong at = start + i * SLOTS;
        elements[i * SUB_DIM + j] = at < n ? float(x[(ulong(head) * n + at) * SUB_DIM + j]) : 0.0f;
        top = metal::max(top, magnitude(elements[i * SUB_DIM + j]));
    }
    const uint exponent = metal::max(exponent_of(top), book_exponent);
    // NaN is near nothing, which leaves code 0.
    const float unit = top < INFINITE ? power_down(exponent) : as_type<float>(0x7fc00000u);
    for (int j = 0; j < SUB_DIM; j++) {
        elements[i * SUB_DIM + j] *= unit;
    }
    weights[i] = as_type<float>((127u - metal::min(exponent - book_exponent, 127u)) << 23);  // 0 from 2^-127 on
    best[i] = -INFINITY;
    nearest[i] = 0;
}
for (uint from = 0; from < entries; from += TILE) {
    const uint count = metal::min(entries - from, uint(TILE));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = thread_index; e < count; e += THREADS) {
        float squares = 0.0f;
        for (int j = 0; j < SUB_DIM; j++) {
            const ulong at = (ulong(head) * entries + from + e) * SUB_DIM + j;
            const float v = float(codebook[at]) * power_down(book_exponent);
            tile[e * SUB_DIM + j] = v;
            squares += v * v;
        }
        half_norms[e] = squares / 2.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (start < n) {
        for (uint e = thread_index % SPLIT; e < count; e += SPLIT) {
            for (int i = 0; i < EACH; i++) {
                float score = 0.0f;
                for (int j = 0; j < SUB_DIM; j++) {
                    score += elements[i * SUB_DIM + j] * tile[e * SUB_DIM + j];
                }
                score -= weights[i] * half_norms[e];
                if (score > best[i]) {
                    best[i] = score;
                    nearest[i] = from + e;
                }
            }
        }
    }
}
for (int i = 0; i < EACH; i++) {
    if (SPLIT != 1) {
        const float top = simd_max(best[i]);
        nearest[i] = simd_min(best[i] == top ? nearest[i] : 0xffffffffu);
    }
    const ulong at = start + i * SLOTS;
    if (at < n && thread_index % SPLIT == 0) {
        codes[ulong(head) * n + at] = nearest[i];
    }
}
