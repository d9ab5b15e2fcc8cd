// Rows of codes of BITS bits in 32-bit words: code j takes the bits j * BITS ... of its row, from the lowest bit of word 0.
// 32 codes fill BITS words, so positions are counted within such a group: no product can overflow.

// Word `word` of the row that holds BITS bits, from bit `below` up, of each of `count` codes.
template <int BITS, typename Codes>
inline uint packed_word(Codes codes, uint count, uint word, uint below) {
    const uint group = word / BITS;
    const uint start = (word % BITS) * 32;
    const uint end = (start + 31) / BITS + 1;  // just after the code that has the word's last bit
    uint packed = 0;
    for (uint k = start / BITS; k < end; k++) {
        const uint j = group * 32 + k;
        if (j < count) {
            const ulong code = (uint(codes[j]) >> below) & ((1u << BITS) - 1u);
            packed |= uint((code << 32) >> (start + 32 - k * BITS));
        }
    }
    return packed;
}

// Code j of the row that starts at `words`.
template <int BITS, typename Words>
inline uint unpacked_code(Words words, uint j) {
    const uint bit = (j % 32) * BITS;
    const uint word = (j / 32) * BITS + bit / 32;
    const uint shift = bit % 32;
    uint code = words[word] >> shift;
    if (shift + BITS > 32) {
        code |= words[word + 1] << (32 - shift);
    }
    return code & ((1u << BITS) - 1u);
}
