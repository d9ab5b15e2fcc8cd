    // A threadgroup answers ROWS queries of one KV head over one part of the tokens; its simdgroups take tiles of 32
    // tokens in turn, each with a softmax of its own. For scores a lane has a token, for values some channels.
    constexpr int WIDTH = (KEY_KIND == 2 ? 0 : K_DIMS + K_SIGNS) + 2 * PAIRS + 1;
    constexpr int LONGEST = WIDTH > D ? WIDTH : D;
    constexpr int TURNED = WIDTH - 2 * PAIRS - 1;
    constexpr int THREADS = 32 * SIMDGROUPS;
    constexpr int EACH = (V_D + 31) / 32;
    constexpr int SEGMENTS = 5;
    threadgroup float here[ROWS * LONGEST];
    threadgroup float k_table[K_LEVELS];
    threadgroup float v_table[V_LEVELS];

    int lane = int(thread_index_in_simdgroup);
    int member = int(simdgroup_index_in_threadgroup);
    int thread_index = member * 32 + lane;
    int part = int(threadgroup_position_in_grid.x);
    int first_row = int(threadgroup_position_in_grid.y) * ROWS;
    size_t vector = size_t(threadgroup_position_in_grid.z);
    int rows = sizes[0];
    int n_queries = sizes[1];
    int n_parts = sizes[2];
    int sinks = sizes[3];
    int start = parts[part * 4];
    int stop = parts[part * 4 + 1];
    int segment = parts[part * 4 + 2];
    bool key_coded = (parts[part * 4 + 3] & 1) != 0;
    bool value_coded = (parts[part * 4 + 3] & 2) != 0;
    int width = key_coded ? WIDTH : D;
    size_t vector_rows = vector * size_t(rows);

    for (int i = thread_index; i < ROWS * width; i += THREADS) {
        int row = first_row + i % ROWS;
        float q = 0.0f;
        if (row < rows) {
            size_t at = (vector_rows + size_t(row)) * size_t(width) + size_t(i / ROWS);
            q = key_coded ? queries[at] : raw_queries[at];
        }
        here[i] = q;
    }
    if (KEY_KIND == 0) {
        for (int i = thread_index; i < K_LEVELS; i += THREADS) {
            k_table[i] = k_levels[i];
        }
    }
    if (VALUE_KIND == 0) {
        for (int i = thread_index; i < V_LEVELS; i += THREADS) {
            v_table[i] = v_levels[i];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    int low[ROWS];
    int high[ROWS];
    float top[ROWS];
    float total[ROWS];
    float sums[ROWS * EACH];
    for (int r = 0; r < ROWS; r++) {
        int at = ((first_row + r) % n_queries * SEGMENTS + segment) * 2;
        low[r] = seen[at];
        high[r] = first_row + r < rows ? seen[at + 1] : 0;
        top[r] = -INFINITY;
        total[r] = 0.0f;
        for (int i = 0; i < EACH; i++) {
            sums[r * EACH + i] = 0.0f;
        }
    }

    for (int tile = start + member * 32; tile < stop; tile += THREADS) {
        int t = tile + lane;
        float scores[ROWS];
        for (int r = 0; r < ROWS; r++) {
            scores[r] = 0.0f;
        }
        if (t < stop && key_coded) {
            size_t at = vector * size_t(sizes[4]) + size_t(t - sizes[5]);
            if (KEY_KIND == 0) {
                constexpr int WORDS = (K_DIMS * K_BITS + 31) / 32;
                constexpr int WORDS2 = (K_DIMS * K_BITS2 + 31) / 32;
                float scale = K_INLINE ? attend_inline_scale(k_codes + at * WORDS, WORDS) : float(k_scales[at]);
                attend_level_scores<K_DIMS, K_BITS, K_BITS2, ROWS>(
                    k_codes + at * WORDS, k_codes2 + at * WORDS2, k_table, here, scores);
                for (int r = 0; r < ROWS; r++) {
                    scores[r] *= scale;
                }
                if (K_SIGNS > 0) {
                    constexpr int SIGN_WORDS = (K_SIGNS + 31) / 32;
                    float signs[ROWS];
                    for (int r = 0; r < ROWS; r++) {
                        signs[r] = 0.0f;
                    }
                    attend_level_scores<K_SIGNS, 1, 0, ROWS>(
                        k_codes2 + at * SIGN_WORDS, k_codes2, k_table + (K_LEVELS - 2), here + K_DIMS * ROWS, signs);
                    float scale2 = float(k_scales2[at]);
                    for (int r = 0; r < ROWS; r++) {
                        scores[r] += scale2 * signs[r];
                    }
                }
            } else if (KEY_KIND == 1) {
                constexpr int WORDS = K_DIMS * K_BITS / 32;
                constexpr int GROUPS = K_DIMS / K_GROUP;
                attend_affine_scores<K_T, K_DIMS, K_BITS, K_GROUP, ROWS>(
                    k_codes + at * WORDS, k_scales + at * GROUPS, k_scales2 + at * GROUPS, here, scores);
            } else {
                constexpr int PARTS = K_DIMS / K_GROUP;
                constexpr int WORDS = (PARTS * K_BITS + 31) / 32;
                attend_table_scores<K_DIMS, K_BITS, K_GROUP, ROWS>(
                    k_codes + at * WORDS, k_levels + (((vector_rows + size_t(first_row)) * PARTS) << K_BITS),
                    rows - first_row, scores);
            }
            attend_turned_offset<PAIRS, ROWS>(t, coarse, fine, here + TURNED * ROWS, scores);
            for (int r = 0; r < ROWS; r++) {
                scores[r] += here[(WIDTH - 1) * ROWS + r];
            }
        } else if (t < stop) {
            size_t at = vector * size_t(sizes[6]) + size_t(t < sinks ? t : t - sizes[7]);
            attend_raw_scores<D, ROWS>(k_raw + at * D, here, scores);
        }

        float weights[ROWS];
        for (int r = 0; r < ROWS; r++) {
            float score = t < stop && t >= low[r] && t < high[r] ? scores[r] : -INFINITY;
            float above = metal::max(top[r], simd_max(score));
            float shrink = top[r] == -INFINITY ? 0.0f : metal::exp(top[r] - above);
            weights[r] = score == -INFINITY ? 0.0f : metal::exp(score - above);
            total[r] = total[r] * shrink + weights[r];
            top[r] = above;
            for (int i = 0; i < EACH; i++) {
                sums[r * EACH + i] *= shrink;
            }
        }

        int count = metal::min(32, stop - tile);
        for (int step = 0; step < count; step++) {
            int s = tile + step;
            float x[EACH];
            if (value_coded) {
                size_t at = vector * size_t(sizes[8]) + size_t(s - sizes[9]);
                if (VALUE_KIND == 0) {
                    constexpr int WORDS = (V_D * V_BITS + 31) / 32;
                    constexpr int WORDS2 = (V_D * V_BITS2 + 31) / 32;
                    float scale = V_INLINE ? attend_inline_scale(v_codes + at * WORDS, WORDS) : float(v_scales[at]);
                    attend_level_values<V_D, V_BITS, V_BITS2, EACH>(
                        v_codes + at * WORDS, v_codes2 + at * WORDS2, v_table, scale, lane * EACH, x);
                } else if (VALUE_KIND == 1) {
                    constexpr int WORDS = V_D * V_BITS / 32;
                    constexpr int GROUPS = V_D / V_GROUP;
                    attend_affine_values<V_T, V_BITS, V_GROUP, EACH>(
                        v_codes + at * WORDS, v_scales + at * GROUPS, v_scales2 + at * GROUPS, lane * EACH, x);
                } else {
                    constexpr int WORDS = (V_D / V_GROUP * V_BITS + 31) / 32;
                    attend_book_values<V_D, V_BITS, V_GROUP, EACH>(
                        v_codes + at * WORDS, v_levels + vector * size_t(sizes[12]), lane * EACH, x);
                }
            } else {
                size_t at = vector * size_t(sizes[10]) + size_t(s < sinks ? s : s - sizes[11]);
                attend_raw_values<V_D, EACH>(v_raw + at * V_D, lane * EACH, x);
            }
            for (int r = 0; r < ROWS; r++) {
                float weight = simd_shuffle(weights[r], ushort(step));
                for (int i = 0; i < EACH; i++) {
                    sums[r * EACH + i] += weight * x[i];
                }
            }
        }
    }

    for (int r = 0; r < ROWS; r++) {
        float sum = simd_sum(total[r]);
        if (first_row + r < rows) {
            size_t at = (vector_rows + size_t(first_row + r)) * size_t(n_parts * SIMDGROUPS)
                + size_t(part * SIMDGROUPS + member);
            if (lane == 0) {
                tops[at] = top[r];
                totals[at] = sum;
            }
            for (int i = 0; i < EACH; i++) {
                if (lane * EACH + i < V_D) {
                    outputs[at * V_D + size_t(lane * EACH + i)] = sums[r * EACH + i];
                }
            }
        }
    }
