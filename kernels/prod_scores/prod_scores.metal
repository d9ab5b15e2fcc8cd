// One thread a token and QUERIES queries of one head: the rotated query with the levels of the codes, times the first
// scale, and the projected query with the signs, times the second.
constexpr int THREADS = 256;
constexpr int LEVELS = 1 << BITS;
constexpr uint WORDS = (D * BITS + 31) / 32;
constexpr int SIGN_WORDS = (M + 31) / 32;
threadgroup float tables[QUERIES * HELD * 8 * 16];
threadgroup float elements[QUERIES * D];
threadgroup float levels[LEVELS];
const uint index = thread_position_in_threadgroup.x;
const uint queries = uint(sizes[0]);
const uint tokens = uint(sizes[1]);
const ulong head = threadgroup_position_in_grid.z;
const uint first_query = threadgroup_position_in_grid.y * QUERIES;
const uint token = threadgroup_position_in_grid.x * THREADS + index;
const ulong at = head * tokens + token;

for (uint i = index; i < LEVELS; i += THREADS) {
    levels[i] = codebook[i];
}
for (uint i = index; i < QUERIES * D; i += THREADS) {
    const uint query = first_query + i % QUERIES;
    elements[i] = query < queries ? rotated[(head * queries + query) * D + i / QUERIES] : 0.0f;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
float sums[QUERIES] = {};
float signed_sums[QUERIES] = {};
if (token < tokens) {
    for (uint j = 0; j < D; j++) {
        const float level = levels[unpacked_code<BITS>(codes + at * WORDS, j)];
        for (uint i = 0; i < QUERIES; i++) {
            sums[i] += level * elements[j * QUERIES + i];
        }
    }
}
for (int from = 0; from < SIGN_WORDS; from += HELD) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    fill_sign_tables<M, QUERIES, HELD, THREADS>(
        projected + (head * queries + first_query) * M, queries - first_query, uint(from), tables, index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (token < tokens) {
        add_signed<M, QUERIES, HELD>(signs + at * SIGN_WORDS, uint(from), tables, signed_sums);
    }
}
if (token < tokens) {
    const float scale = EMBEDDED ? read_scale(codes[at * WORDS + WORDS - 1] >> 16) : float(scales[EMBEDDED ? 0 : at]);
    const float sign_scale = float(sign_scales[at]);
    for (uint i = 0; i < QUERIES; i++) {
        if (first_query + i < queries) {
            const ulong score = (head * queries + first_query + i) * tokens + token;
            scores[score] = sums[i] * scale + signed_sums[i] * sign_scale;
        }
    }
}
