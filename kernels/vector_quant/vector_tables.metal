// Products of every entry with the sub-vectors of QUERIES queries, side by side. One thread an entry; the grid's second
// side is sub-vectors of blocks of queries, its third is heads.
constexpr uint PARTS = D / SUB_DIM;
const uint queries = uint(sizes[0]);
const uint entries = uint(sizes[1]);
const uint books = uint(sizes[2]);
const uint entry = thread_position_in_grid.x;
const uint part = threadgroup_position_in_grid.y % PARTS;
const uint first_query = threadgroup_position_in_grid.y / PARTS * QUERIES;
const uint head = threadgroup_position_in_grid.z;
if (entry < entries) {
    const ulong book = ulong(head % books) * entries;
    float elements[SUB_DIM];
    for (uint j = 0; j < SUB_DIM; j++) {
        elements[j] = float(codebook[(book + entry) * SUB_DIM + j]);
    }
    const ulong blocks = (queries + QUERIES - 1) / QUERIES;
    const ulong table = ((head * blocks + first_query / QUERIES) * PARTS + part) * entries + entry;
    for (uint i = 0; i < QUERIES; i++) {
        float sum = 0.0f;
        if (first_query + i < queries) {
            const ulong query = (ulong(head) * queries + first_query + i) * D + part * SUB_DIM;
            for (uint j = 0; j < SUB_DIM; j++) {
                sum += q[query + j] * elements[j];
            }
        }
        tables[table * QUERIES + i] = sum;
    }
}
