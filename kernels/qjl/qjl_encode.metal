// A threadgroup takes 32 vectors, EACH of them a simdgroup, and 32 rows of the sketch, a lane each, which make one word
// of signs a vector. Elements go through the threadgroup's memory 32 at a time, in fours.
constexpr int EACH = 8;
constexpr int SIMDGROUPS = 4;
constexpr int FOURS = 8;
constexpr int PITCH = FOURS + 1;  // lanes then read their rows from different banks
constexpr uint WORDS = (M + 31) / 32;
threadgroup float4 rows[32 * PITCH];
threadgroup float4 vectors[SIMDGROUPS * EACH * FOURS];
threadgroup uint exponents[SIMDGROUPS * EACH];
const uint lane = thread_index_in_simdgroup;
const uint slot = simdgroup_index_in_threadgroup;
const uint word = threadgroup_position_in_grid.y;
const ulong n = uint(sizes[0]);
const ulong start = ulong(threadgroup_position_in_grid.x) * (SIMDGROUPS * EACH) + slot * EACH;

uint largest[EACH];
for (int i = 0; i < EACH; i++) {
    uint found = 0;
    for (uint j = lane; j < D; j += 32) {
        found = metal::max(found, start + i < n ? magnitude(float(x[(start + i) * D + j])) : 0u);
    }
    largest[i] = simd_max(found);
    if (lane == 0) {
        exponents[slot * EACH + i] = exponent_of(largest[i]);
    }
}
if (word == 0) {
    for (int i = 0; i < EACH; i++) {
        const uint exponent = exponent_of(largest[i]);
        float squares = 0.0f;
        for (uint j = lane; j < D; j += 32) {
            const float v = start + i < n ? float(x[(start + i) * D + j]) * power_down(exponent) : 0.0f;
            squares += v * v;
        }
        const float rms = metal::sqrt(simd_sum(squares) / float(D));
        if (lane == 0 && start + i < n) {
            scales[start + i] = uint16_t(stored_scale(rms * power_up(exponent), largest[i]));
        }
    }
}

float sums[EACH] = {};
for (uint from = 0; from < D; from += 4 * FOURS) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint four = lane; four < EACH * FOURS; four += 32) {
        const uint i = slot * EACH + four / FOURS;
        const ulong at = start + four / FOURS;
        float4 v;
        for (uint k = 0; k < 4; k++) {
            const uint j = from + four % FOURS * 4 + k;
            v[k] = j < D && at < n ? float(x[at * D + j]) * power_down(exponents[i]) : 0.0f;
        }
        vectors[slot * EACH * FOURS + four] = v;
    }
    for (uint four = slot * 32 + lane; four < 32 * FOURS; four += SIMDGROUPS * 32) {
        const uint row = word * 32 + four / FOURS;
        float4 v;
        for (uint k = 0; k < 4; k++) {
            const uint j = from + four % FOURS * 4 + k;
            v[k] = j < D && row < M ? sketch[row * D + j] : 0.0f;
        }
        rows[four / FOURS * PITCH + four % FOURS] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint four = 0; four < FOURS; four++) {
        const float4 row = rows[lane * PITCH + four];
        for (int i = 0; i < EACH; i++) {
            sums[i] += metal::dot(row, vectors[(slot * EACH + i) * FOURS + four]);
        }
    }
}
for (int i = 0; i < EACH; i++) {
    const bool plus = sums[i] >= 0.0f && largest[i] < INFINITE && word * 32 + lane < M;
    const uint packed = simd_or(plus ? 1u << lane : 0u);
    if (lane == 0 && start + i < n) {
        signs[(start + i) * WORDS + word] = packed;
    }
}
