// Sums of the elements of projected queries, each with the sign that a bit of a token's row gives it. Four signs at a
// time are looked up in a table of the 16 sums that four elements can make: neighbours, which lie in different banks.

// Tables of HELD words of signs from word `from` on, for QUERIES queries: [QUERIES, HELD * 8, 16]. `projected` points
// to the first query's M elements; `queries` of them are there. Threads must have met before, and meet after.
template <int M, int QUERIES, int HELD, int THREADS, typename Projected, typename Tables>
inline void fill_sign_tables(Projected projected, uint queries, uint from, Tables tables, uint index) {
    constexpr uint ENTRIES = HELD * 8 * 16;
    for (uint entry = index; entry < QUERIES * ENTRIES; entry += THREADS) {
        const uint query = entry / ENTRIES;
        const uint row = from * 32 + entry % ENTRIES / 16 * 4;
        float sum = 0.0f;
        for (uint k = 0; k < 4; k++) {
            if (query < queries && row + k < M) {
                const float element = projected[ulong(query) * M + row + k];
                sum += ((entry >> k) & 1u) != 0u ? element : -element;
            }
        }
        tables[entry] = sum;
    }
}

// Adds to each query's sum what the tables hold for the words from `from` on of a token's row of signs.
template <int M, int QUERIES, int HELD, typename Signs, typename Tables>
inline void add_signed(Signs signs, uint from, Tables tables, thread float* sums) {
    constexpr uint WORDS = (M + 31) / 32;
    constexpr uint ENTRIES = HELD * 8 * 16;
    for (uint w = 0; w < HELD && from + w < WORDS; w++) {
        const uint word = signs[from + w];
        for (uint four = 0; four < 8; four++) {
            const uint entry = (w * 8 + four) * 16 + ((word >> (4 * four)) & 15u);
            for (uint i = 0; i < QUERIES; i++) {
                sums[i] += tables[i * ENTRIES + entry];
            }
        }
    }
}
