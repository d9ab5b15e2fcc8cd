// One simdgroup a vector, VECTORS of them a threadgroup, each in its own part of the threadgroup's memory.
threadgroup float rows[VECTORS * D];
threadgroup uint8_t codes[VECTORS * D];
constexpr int N = D / M;
constexpr int EACH = (D + 31) / 32;
constexpr int LOWER = SECOND + int(SECOND == 0);  // not 0, for what is compiled and not run
const uint lane = thread_index_in_simdgroup;
const uint slot = simdgroup_index_in_threadgroup;
const uint vector = threadgroup_position_in_grid.x * VECTORS + slot;
const bool is_there = vector < uint(sizes[0]);
const ulong at = is_there ? vector : 0u;  // a simdgroup without a vector goes along with the first and writes nothing
threadgroup float* row = rows + slot * D;
threadgroup uint8_t* code = codes + slot * D;

float v[EACH];
uint largest = 0;
for (int i = 0; i < EACH; i++) {
    const uint j = i * 32 + lane;
    v[i] = 0.0f;
    if (j < D) {
        v[i] = float(x[at * D + j]);
        if (CENTRED) {
            const uint tokens = uint(sizes[1]);
            const uint token = uint(at) % tokens % uint(sizes[3]);
            const uint head = uint(at) / tokens % uint(sizes[2]);
            v[i] -= offset[(ulong(head) * uint(sizes[3]) + token) * D + j];
        }
        largest = metal::max(largest, magnitude(v[i]));
    }
}
largest = simd_max(largest);
const uint exponent = exponent_of(largest);
for (int i = 0; i < EACH; i++) {
    v[i] *= power_down(exponent);
}

float squares = 0.0f;
for (int turn = 0; turn < ROUNDS; turn++) {
    for (int i = 0; i < EACH; i++) {
        const uint j = i * 32 + lane;
        if (j < D) {
            row[j] = v[i] * float(signs[turn * D + j]);
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    within_blocks<M, N>(row, lane);
    squares = 0.0f;
    for (int i = 0; i < EACH; i++) {
        const uint j = i * 32 + lane;
        if (j < D) {
            v[i] = across_blocks<M, N>(row, core, j);
            squares += v[i] * v[i];
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}
const float rms = metal::sqrt(simd_sum(squares) / float(D));

float overlap = 0.0f;
for (int i = 0; i < EACH; i++) {
    const uint j = i * 32 + lane;
    if (j < D) {
        const float y = v[i] / (rms == 0.0f ? 1.0f : rms);
        const uint nearest = code_of<FIRST + SECOND>(thresholds, y);
        code[j] = uint8_t(nearest);
        if (UNBIASED) {
            overlap += y * codebook[nearest];
        }
    }
}
float scale = rms;
if (UNBIASED) {
    overlap = simd_sum(overlap) / float(D);
    scale = rms / (overlap == 0.0f ? 1.0f : overlap);
}
const uint stored = stored_scale(scale * power_up(exponent), largest);
simdgroup_barrier(mem_flags::mem_threadgroup);

if (is_there) {
    constexpr uint WORDS = (D * FIRST + 31) / 32;
    for (uint w = lane; w < WORDS; w += 32) {
        const uint slack = EMBEDDED && w == WORDS - 1 ? stored << 16 : 0u;
        first[at * WORDS + w] = packed_word<FIRST>(code, uint(D), w, uint(SECOND)) | slack;
    }
    if (SECOND > 0) {
        constexpr uint MORE = (D * LOWER + 31) / 32;
        for (uint w = lane; w < MORE; w += 32) {
            second[at * MORE + w] = packed_word<LOWER>(code, uint(D), w, 0u);
        }
    }
    if (lane == 0 && !EMBEDDED) {
        scales[at] = uint16_t(stored);
    }
}
// What isn't needed is one element, 0.
if (is_there && vector == 0 && lane == 0) {
    if (SECOND == 0) {
        second[0] = 0u;
    }
    if (EMBEDDED) {
        scales[0] = uint16_t(0);
    }
}
