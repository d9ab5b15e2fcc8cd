// Tokens as they came. Queries lie with the ROWS rows of one channel side by side.

template <int DIMS, int ROWS, typename Token, typename Queries>
inline void attend_raw_scores(Token token, Queries queries, thread float (&scores)[ROWS]) {
    for (int j = 0; j < DIMS; j++) {
        float x = float(token[j]);
        for (int r = 0; r < ROWS; r++) {
            scores[r] += x * queries[j * ROWS + r];
        }
    }
}

template <int DIMS, int EACH, typename Token>
inline void attend_raw_values(Token token, int first, thread float (&x)[EACH]) {
    for (int i = 0; i < EACH; i++) {
        x[i] = first + i < DIMS ? float(token[first + i]) : 0.0f;
    }
}
