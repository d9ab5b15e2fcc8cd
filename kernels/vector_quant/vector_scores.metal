// One thread a token: the sum over its codes of what the tables hold for them, for QUERIES queries at once.
const uint queries = uint(sizes[0]);
const uint tokens = uint(sizes[1]);
constexpr uint WORDS = (PARTS * BITS + 31) / 32;
const uint token = thread_position_in_grid.x;
const uint first_query = threadgroup_position_in_grid.y * QUERIES;
const uint head = threadgroup_position_in_grid.z;
if (token < tokens) {
    const ulong blocks = (queries + QUERIES - 1) / QUERIES;
    const ulong first_table = (head * blocks + first_query / QUERIES) * PARTS;
    const ulong row = (ulong(head) * tokens + token) * WORDS;
    float sums[QUERIES] = {};
    for (uint part = 0; part < PARTS; part++) {
        const uint code = unpacked_code<BITS>(words + row, part);
        const ulong entry = ((first_table + part) << BITS) + code;
        for (uint i = 0; i < QUERIES; i++) {
            sums[i] += tables[entry * QUERIES + i];
        }
    }
    for (uint i = 0; i < QUERIES; i++) {
        if (first_query + i < queries) {
            scores[(ulong(head) * queries + first_query + i) * tokens + token] = sums[i];
        }
    }
}
