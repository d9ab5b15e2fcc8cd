    // One simdgroup joins the softmaxes of all parts for 32 channels of one row: what comes from coded values apart
    // from what comes from raw ones, since the former still has to be turned back.
    int lane = int(thread_index_in_simdgroup);
    size_t row = size_t(threadgroup_position_in_grid.x);
    int channel = int(threadgroup_position_in_grid.y) * 32 + lane;
    int parts = sizes[0];
    int coded_parts = sizes[1];
    size_t base = row * size_t(parts);
    float logit = SINKS ? logits[row] : -INFINITY;

    float top = logit;
    for (int p = lane; p < parts; p += 32) {
        top = metal::max(top, tops[base + size_t(p)]);
    }
    top = simd_max(top);
    float total = 0.0f;
    float of_coded = 0.0f;
    for (int p = lane; p < parts; p += 32) {
        float at = tops[base + size_t(p)];
        float share = at == -INFINITY ? 0.0f : metal::exp(at - top) * totals[base + size_t(p)];
        total += share;
        of_coded += p < coded_parts ? share : 0.0f;
    }
    total = simd_sum(total);
    of_coded = simd_sum(of_coded);
    if (SINKS && logit != -INFINITY) {
        total += metal::exp(logit - top);
    }
    float divisor = total == 0.0f ? 1.0f : total;
    if (channel < D) {
        float from_coded = 0.0f;
        float from_raw = 0.0f;
        for (int p = 0; p < parts; p++) {
            float at = tops[base + size_t(p)];
            float weight = at == -INFINITY ? 0.0f : metal::exp(at - top);
            float x = weight * outputs[(base + size_t(p)) * D + size_t(channel)];
            from_coded += p < coded_parts ? x : 0.0f;
            from_raw += p < coded_parts ? 0.0f : x;
        }
        coded[row * D + size_t(channel)] = from_coded / divisor;
        raw[row * D + size_t(channel)] = from_raw / divisor;
    }
    if (channel == 0) {
        shares[row] = of_coded / divisor;
    }
