// Scalar quantisation: which of 2^BITS levels is nearest.

// Number of the 2^BITS - 1 ascending thresholds that lie strictly below y, by binary search; 0 for NaN.
template <int BITS, typename Thresholds>
inline uint code_of(Thresholds thresholds, float y) {
    uint code = 0;
    for (uint step = 1u << (BITS - 1); step > 0; step /= 2) {
        code += y > float(thresholds[code + step - 1]) ? step : 0u;
    }
    return code;
}
