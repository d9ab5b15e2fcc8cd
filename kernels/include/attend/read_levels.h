// A scale a token times one level an element: turboquant-mse, both stages of -rvq, signs of a sketch (BITS = 1).
// An element's code has its upper BITS bits in the first plane and its lower BITS2 bits, if any, in the second.

template <int DIMS, int BITS, int BITS2, int ROWS, typename Words, typename Words2, typename Levels, typename Queries>
inline void attend_level_scores(
    Words words, Words2 words2, Levels levels, Queries queries, thread float (&sums)[ROWS]) {
    constexpr int WORDS = (DIMS * BITS + 31) / 32;
    constexpr int WORDS2 = (DIMS * BITS2 + 31) / 32;
    constexpr int HELD2 = BITS2 + (BITS2 == 0);
    for (int group = 0; group < (DIMS + 31) / 32; group++) {  // 32 codes fill BITS words
        uint held[BITS];
        uint held2[HELD2];
        int word = group * BITS;
        int word2 = group * BITS2;
        for (int i = 0; i < BITS; i++) {
            held[i] = word + i < WORDS ? words[word + i] : 0u;
        }
        for (int i = 0; i < BITS2; i++) {
            held2[i] = word2 + i < WORDS2 ? words2[word2 + i] : 0u;
        }
#pragma unroll
        for (int j = 0; j < 32; j++) {  // with j known, held words stay in registers
            if (group * 32 + j < DIMS) {
                uint code = unpacked_code<BITS>(held, uint(j));
                if (BITS2 > 0) {
                    code = (code << BITS2) | unpacked_code<HELD2>(held2, uint(j));
                }
                float level = levels[code];
                for (int r = 0; r < ROWS; r++) {
                    sums[r] += level * queries[(group * 32 + j) * ROWS + r];
                }
            }
        }
    }
}

template <int DIMS, int BITS, int BITS2, int EACH, typename Words, typename Words2, typename Levels>
inline void attend_level_values(
    Words words, Words2 words2, Levels levels, float scale, int first, thread float (&x)[EACH]) {
    constexpr int SECOND = BITS2 + (BITS2 == 0);
    for (int i = 0; i < EACH; i++) {
        x[i] = 0.0f;
        if (first + i < DIMS) {
            uint code = unpacked_code<BITS>(words, uint(first + i));
            if (BITS2 > 0) {
                code = (code << BITS2) | unpacked_code<SECOND>(words2, uint(first + i));
            }
            x[i] = scale * levels[code];
        }
    }
}

// The scale of a row of `count` words that keeps it in the upper half of the last one.
template <typename Words>
inline float attend_inline_scale(Words words, int count) {
    return read_scale(words[count - 1] >> 16);
}
