// mx.quantize: scale * code + bias, both of a group of GROUP elements, rounded to their type S as mx.dequantize does.

template <typename S>
inline float attend_affine_element(float scale, uint code, float bias) {
    return float(S(float(S(scale * float(code))) + bias));
}

template <typename S, int DIMS, int BITS, int GROUP, int ROWS, typename Words, typename Scales, typename Biases,
          typename Queries>
inline void attend_affine_scores(
    Words words, Scales scales, Biases biases, Queries queries, thread float (&sums)[ROWS]) {
    for (int group = 0; group < DIMS / GROUP; group++) {
        float scale = float(scales[group]);
        float bias = float(biases[group]);
        for (int j = group * GROUP; j < (group + 1) * GROUP; j++) {
            float x = attend_affine_element<S>(scale, unpacked_code<BITS>(words, uint(j)), bias);
            for (int r = 0; r < ROWS; r++) {
                sums[r] += x * queries[j * ROWS + r];
            }
        }
    }
}

template <typename S, int BITS, int GROUP, int EACH, typename Words, typename Scales, typename Biases>
inline void attend_affine_values(Words words, Scales scales, Biases biases, int first, thread float (&x)[EACH]) {
    for (int i = 0; i < EACH; i++) {
        int c = first + i;  // below DIMS, which is a multiple of 32
        uint code = unpacked_code<BITS>(words, uint(c));
        x[i] = attend_affine_element<S>(float(scales[c / GROUP]), code, float(biases[c / GROUP]));
    }
}
