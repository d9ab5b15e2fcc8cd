// <q, R_t mu> of a mean mu that turns with the token's position t: the sum over pairs i of channels of
// a_i cos(t f_i) + b_i sin(t f_i), with a and b made of q and mu beforehand. Cosine and sine come from two tables,
// of t / 64 and of t % 64, by the addition theorem: no angle is taken in float32, which is off at large t.

template <int PAIRS, int ROWS, typename Coarse, typename Fine, typename Queries>
inline void attend_turned_offset(int t, Coarse coarse, Fine fine, Queries queries, thread float (&sums)[ROWS]) {
    for (int i = 0; i < PAIRS; i++) {
        float c = coarse[(size_t(t >> 6) * PAIRS + i) * 2];
        float s = coarse[(size_t(t >> 6) * PAIRS + i) * 2 + 1];
        float c1 = fine[(i * 64 + (t & 63)) * 2];
        float s1 = fine[(i * 64 + (t & 63)) * 2 + 1];
        float cosine = c * c1 - s * s1;
        float sine = s * c1 + c * s1;
        for (int r = 0; r < ROWS; r++) {
            sums[r] += queries[2 * i * ROWS + r] * cosine + queries[(2 * i + 1) * ROWS + r] * sine;
        }
    }
}
