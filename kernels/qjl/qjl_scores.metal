// One thread a token, and QUERIES queries of one head; HELD words of signs at a time.
constexpr int THREADS = 512;
constexpr int WORDS = (M + 31) / 32;
threadgroup float tables[QUERIES * HELD * 8 * 16];
const uint index = thread_position_in_threadgroup.x;
const uint queries = uint(sizes[0]);
const uint tokens = uint(sizes[1]);
const ulong head = threadgroup_position_in_grid.z;
const uint first_query = threadgroup_position_in_grid.y * QUERIES;
const uint token = threadgroup_position_in_grid.x * THREADS + index;
const ulong at = head * tokens + token;

float sums[QUERIES] = {};
for (int from = 0; from < WORDS; from += HELD) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    fill_sign_tables<M, QUERIES, HELD, THREADS>(
        projected + (head * queries + first_query) * M, queries - first_query, uint(from), tables, index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (token < tokens) {
        add_signed<M, QUERIES, HELD>(signs + at * WORDS, uint(from), tables, sums);
    }
}
if (token < tokens) {
    const float scale = float(scales[at]);
    for (uint i = 0; i < QUERIES; i++) {
        if (first_query + i < queries) {
            scores[(head * queries + first_query + i) * tokens + token] = sums[i] * scale;
        }
    }
}
