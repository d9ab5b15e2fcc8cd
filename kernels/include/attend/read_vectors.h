// Sub-vectors of SUB elements, each a code of BITS bits: vecinfer.

// Keys by tables [rows, sub-vectors, entries] of the query's products with every entry; no key is decoded.
template <int DIMS, int BITS, int SUB, int ROWS, typename Words, typename Tables>
inline void attend_table_scores(Words words, Tables tables, int rows, thread float (&sums)[ROWS]) {
    constexpr int PARTS = DIMS / SUB;
    for (int part = 0; part < PARTS; part++) {
        int code = int(unpacked_code<BITS>(words, uint(part)));
        for (int r = 0; r < ROWS; r++) {
            if (r < rows) {
                sums[r] += tables[((r * PARTS + part) << BITS) + code];
            }
        }
    }
}

// Values by their codebook [entries, SUB].
template <int DIMS, int BITS, int SUB, int EACH, typename Words, typename Book>
inline void attend_book_values(Words words, Book book, int first, thread float (&x)[EACH]) {
    for (int i = 0; i < EACH; i++) {
        int c = first + i;
        x[i] = c < DIMS ? float(book[int(unpacked_code<BITS>(words, uint(c / SUB))) * SUB + c % SUB]) : 0.0f;
    }
}
