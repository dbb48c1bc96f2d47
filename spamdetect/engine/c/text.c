/* Reading a text: what it is made of, and the last step of normalising it. */

#include "speedups.h"

#define KINDS 21

/* Letters without look-alikes in other scripts, from a, alpha and the Cyrillic a: see
   `confusables`. */
#define ONLY_LATIN 0x2670868u
#define ONLY_GREEK 0xa0a4a8u
#define ONLY_CYRILLIC 0xefd00ad0u

/* Counting: `words` and `characters`. */

static Py_ssize_t
extended(const uint8_t *breaks, const Codes *codes, Py_ssize_t i)
{
    while (i < codes->size && breaks[codes->at[i]] == 'E') {
        i++;
    }
    return i;
}

static uint8_t
class_at(const uint8_t *breaks, const Codes *codes, Py_ssize_t i)
{
    return i < codes->size ? breaks[codes->at[i]] : 0;
}

/* The end of the letters and digits, or of the Katakana, that begin at a place. */
static Py_ssize_t
stretch(const uint8_t *breaks, const Codes *codes, Py_ssize_t i)
{
    uint8_t found = class_at(breaks, codes, i);
    while (found == 'K') {
        i = extended(breaks, codes, i + 1);
        found = class_at(breaks, codes, i);
        if (found != 'K') {
            return i;
        }
    }
    while (found == 'A' || found == 'H' || found == 'N') {
        i = extended(breaks, codes, i + 1);
        uint8_t sign = class_at(breaks, codes, i);
        int joins = found == 'N' ? sign == 'D' || sign == 'B'
                                 : sign == 'M' || sign == 'B' || (found == 'H' && sign == 'Q');
        if (joins) {
            Py_ssize_t after = extended(breaks, codes, i + 1);
            uint8_t next = class_at(breaks, codes, after);
            if (found == 'N' ? next == 'N' : next == 'H' || (next == 'A' && sign != 'Q')) {
                i = after;
            }
        }
        found = class_at(breaks, codes, i);
    }
    return i;
}

static Py_ssize_t
count_words(const uint8_t *breaks, const Codes *codes)
{
    Py_ssize_t words = 0, i = 0;
    while (i < codes->size) {
        uint8_t found = breaks[codes->at[i]];
        if (found == 'S') {
            words++;
            i++;
            continue;
        }
        if (found != 'A' && found != 'H' && found != 'N' && found != 'K') {
            i++;
            continue;
        }
        words++;
        for (;;) {
            i = stretch(breaks, codes, i);
            Py_ssize_t after = i;
            while (class_at(breaks, codes, after) == 'U') {
                after = extended(breaks, codes, after + 1);
            }
            uint8_t next = class_at(breaks, codes, after);
            if (after == i || (next != 'A' && next != 'H' && next != 'N' && next != 'K')) {
                break;
            }
            i = after;
        }
    }
    return words;
}

FUNCTION(count)
{
    const uint8_t *kind, *script, *breaks;
    Codes codes;
    if (check_count(given, 2) < 0 || (kind = table_of(module, args[0], KIND)) == NULL ||
        (script = table_of(module, args[0], SCRIPT)) == NULL ||
        (breaks = table_of(module, args[0], WORD_BREAK)) == NULL ||
        codes_read(&codes, args[1]) < 0) {
        return NULL;
    }
    Py_ssize_t kinds[256] = {0}, scripts[256] = {0};
    for (Py_ssize_t i = 0; i < codes.size; i++) {
        kinds[kind[codes.at[i]]]++;
        scripts[script[codes.at[i]]]++;
    }
    Py_ssize_t words = count_words(breaks, &codes);
    codes_free(&codes);
    int main = 1;
    for (int i = 2; i < SCRIPTS; i++) {
        if (scripts[i] > scripts[main]) {
            main = i;
        }
    }
    PyObject *counts = PyList_New(KINDS);
    for (int i = 0; counts != NULL && i < KINDS; i++) {
        PyObject *count = PyLong_FromSsize_t(kinds[i]);
        if (count == NULL || PyList_SetItem(counts, i, count) < 0) {
            Py_CLEAR(counts);
        }
    }
    return counts == NULL ? NULL
                          : Py_BuildValue("(Nin)", counts, scripts[main] ? main : 0, words);
}

/* A text of these code points, which are lost. */
static PyObject *
text_of(Py_UCS4 *codes, Py_ssize_t size)
{
    Py_UCS4 all = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        all |= codes[i];
    }
    if (all >= 0x80) {
        int order = PY_BIG_ENDIAN ? 1 : -1;
        return PyUnicode_DecodeUTF32((char *)codes, size * 4, "surrogatepass", &order);
    }
    char *ascii = (char *)codes;
    for (Py_ssize_t i = 0; i < size; i++) {
        Py_UCS4 code;
        memcpy(&code, ascii + i * (Py_ssize_t)sizeof code, sizeof code);
        ascii[i] = (char)code;
    }
    return PyUnicode_DecodeASCII(ascii, size, NULL);
}

/* Normalising: the last step. */

FUNCTION(shape)
{
    const uint8_t *roles;
    Codes codes;
    if (check_count(given, 2) < 0 || (roles = table_of(module, args[0], ROLES)) == NULL ||
        codes_read(&codes, args[1]) < 0) {
        return NULL;
    }
    Py_ssize_t kept = 0, run = 1, stretched = 0;
    Py_UCS4 before = ' ';
    for (Py_ssize_t i = 0; i < codes.size; i++) {
        Py_UCS4 code = codes.at[i];
        uint8_t role = roles[code];
        code = role & DIGIT ? '0' : role & BLANK ? ' ' : code;
        run = code == before ? run + 1 : 1;
        before = code;
        if (role & LETTER) {
            if (run > 2) {
                stretched++;
                continue;
            }
        }
        else if (run > 1 && !(role & DIGIT)) {
            continue;
        }
        codes.at[kept++] = code;
    }
    if (kept && codes.at[kept - 1] == ' ') {
        kept--; /* the space that ends every text takes its place */
    }
    PyObject *shaped = text_of(codes.at, kept);
    codes_free(&codes);
    return shaped == NULL ? NULL : Py_BuildValue("(Nn)", shaped, stretched);
}

/* What may need a closer look by the regular expressions of `normalise`: never too little. */

static int
may_be_letter(const Codes *codes, Py_ssize_t i)
{
    return i >= 0 && i < codes->size &&
           ((codes->at[i] >= 'A' && codes->at[i] <= 'Z') ||
            (codes->at[i] >= 'a' && codes->at[i] <= 'z') || codes->at[i] >= 0x80);
}

static int
is_sign_for_letter(Py_UCS4 code)
{
    return (code < 0x80 && code != 0 && strchr("0134578@$!|", (int)code) != NULL) ||
           code == 0x20AC;
}

static int
may_be_leet(const Codes *codes, Py_ssize_t i)
{
    Py_ssize_t after = i + 1;
    while (after < i + 3 && after < codes->size && is_sign_for_letter(codes->at[after])) {
        after++;
    }
    int inside = may_be_letter(codes, i - 1) && may_be_letter(codes, after);
    int at_end = may_be_letter(codes, i - 1) && may_be_letter(codes, i - 2) &&
                 may_be_letter(codes, i - 3);
    int at_start = may_be_letter(codes, i + 1) && may_be_letter(codes, i + 2) &&
                   may_be_letter(codes, i + 3);
    return inside || at_end || at_start;
}

static int
is_digit(const Codes *codes, Py_ssize_t i)
{
    return i >= 0 && i < codes->size && codes->at[i] >= '0' && codes->at[i] <= '9';
}

/* Whether a sign may be that of an address or a mention: see `links.MAY_LINK`. */
static int
may_be_link(const Codes *codes, Py_ssize_t i)
{
    Py_UCS4 code = codes->at[i], next = i + 1 < codes->size ? codes->at[i + 1] : ' ';
    if (code == '@') {
        return next != ' ';
    }
    if (code == '/') {
        return next == '/';
    }
    if (code != '.' || i == 0 || next == ' ') {
        return 0;
    }
    if (is_digit(codes, i - 1) && is_digit(codes, i + 1)) {
        Py_ssize_t after = i + 2;
        while (after < i + 4 && is_digit(codes, after)) {
            after++;
        }
        return (after < codes->size && (codes->at[after] == '.' || codes->at[after] >= 0x80)) ||
               (i > 1 && codes->at[i - 2] == 'w');
    }
    return codes->at[i - 1] != ' ' && (may_be_letter(codes, i + 1) || codes->at[i - 1] == 'w' ||
                                       codes->at[i - 1] >= 0x80 || (i > 1 && codes->at[i - 2] == 'w'));
}

FUNCTION(hints)
{
    enum { LINK = 1, APART = 2, LEET = 4 };
    Codes codes;
    if (check_count(given, 1) < 0 || codes_read(&codes, args[0]) < 0) {
        return NULL;
    }
    long found = 0;
    for (Py_ssize_t i = 0; i < codes.size; i++) {
        Py_UCS4 code = codes.at[i];
        if (code == '(' || code == '[' || code == '{' || may_be_link(&codes, i)) {
            found |= LINK;
        }
        if (i + 4 < codes.size && code == codes.at[i + 2] && code == codes.at[i + 4] &&
            ((code < 0x80 && code != 0 && strchr(" ._*|~-", (int)code) != NULL) || code == 0xB7)) {
            found |= may_be_letter(&codes, i + 1) && may_be_letter(&codes, i + 3) ? APART : 0;
        }
        if (!(found & LEET) && is_sign_for_letter(code) && may_be_leet(&codes, i)) {
            found |= LEET;
        }
    }
    codes_free(&codes);
    return PyLong_FromLong(found);
}

/* Letters by script for `normalise._fold_scripts`. */
FUNCTION(letters)
{
    Codes codes;
    if (check_count(given, 1) < 0 || codes_read(&codes, args[0]) < 0) {
        return NULL;
    }
    int latin = 0, greek = 0, cyrillic = 0;
    Py_ssize_t only_latin = 0, only_greek = 0, only_cyrillic = 0;
    for (Py_ssize_t i = 0; i < codes.size; i++) {
        Py_UCS4 code = codes.at[i];
        if (code >= 'a' && code <= 'z') {
            latin = 1;
            only_latin += ONLY_LATIN >> (code - 'a') & 1;
        }
        else if (code >= 0x370 && code <= 0x3FF) {
            greek = 1;
            only_greek += code >= 0x3B1 && code < 0x3B1 + 32 ? ONLY_GREEK >> (code - 0x3B1) & 1 : 0;
        }
        else if (code >= 0x400 && code <= 0x52F) {
            cyrillic = 1;
            only_cyrillic +=
                code >= 0x430 && code < 0x430 + 32 ? ONLY_CYRILLIC >> (code - 0x430) & 1 : 0;
        }
    }
    codes_free(&codes);
    return Py_BuildValue("(iiinnn)", latin, greek, cyrillic, only_latin, only_greek, only_cyrillic);
}

/* The text without the accents U+0300-036F. */
FUNCTION(unaccented)
{
    Codes codes;
    if (check_count(given, 1) < 0 || codes_read(&codes, args[0]) < 0) {
        return NULL;
    }
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < codes.size; i++) {
        codes.at[kept] = codes.at[i];
        kept += codes.at[i] < 0x300 || codes.at[i] > 0x36F;
    }
    PyObject *text = kept < codes.size ? text_of(codes.at, kept) : Py_NewRef(args[0]);
    codes_free(&codes);
    return text;
}

/* Which steps of `normalise.plain` a text needs: it has characters that are removed or replaced, or
   so many marks in a row. */
FUNCTION(oddities)
{
    enum { REPLACED = 1, MANY_MARKS = 2, ROW = 30 };
    const uint8_t *roles;
    Codes codes;
    if (check_count(given, 2) < 0 || (roles = table_of(module, args[0], ROLES)) == NULL ||
        codes_read(&codes, args[1]) < 0) {
        return NULL;
    }
    long found = 0;
    int row = 0;
    for (Py_ssize_t i = 0; i < codes.size; i++) {
        uint8_t role = roles[codes.at[i]];
        row = role & MARK ? row + 1 : 0;
        found |= role & ODD ? REPLACED : 0;
        if (row > ROW) {
            found |= MANY_MARKS;
            row = ROW;
        }
    }
    codes_free(&codes);
    return PyLong_FromLong(found);
}

/* Phone numbers, the longest number, amounts of money next to signs, percentages, and whether
   words for money may follow a number. */

static int
begins_money(Py_UCS4 code)
{
    static const Py_UCS4 first[] = {
        0x20AC, 0xA3, 0x20B9, 0x20BD, 0xA5, 0xE3F, 0x20B4, 0x20AB, /* €£₹₽¥฿₴₫ */
        'u', 'e', 'g', 'r', 'i', 'b', 0x440, 0x433, 0xE1A,          /* and ргบ */
    };
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        if (code == first[i]) {
            return 1;
        }
    }
    return 0;
}

static int
is_money_sign(Py_UCS4 code)
{
    return code == '$' || code == 0x20A6 || code == 0x20B1 || /* ₦₱ */
           (begins_money(code) && (code == 0xA3 || code == 0xA5 || code == 0xE3F || code > 0x2000));
}

static Py_UCS4
code_at(const Codes *codes, Py_ssize_t i)
{
    return i < codes->size ? codes->at[i] : 0;
}

FUNCTION(digits)
{
    Codes codes;
    if (check_count(given, 1) < 0 || codes_read(&codes, args[0]) < 0) {
        return NULL;
    }
    Py_ssize_t phones = 0, longest = 0, money = 0, percent = 0, zeros = 0, run = 0, between = 0;
    int words = 0;
    for (Py_ssize_t i = 0; i < codes.size; i++) {
        Py_UCS4 code = codes.at[i];
        if (code == '0') {
            zeros = between <= 2 ? zeros + 1 : 1;
            phones += zeros == 7;
            run++;
            between = 0;
            longest = run > longest ? run : longest;
            Py_UCS4 next = code_at(&codes, i + 1);
            percent += next == '%';
            words |= begins_money(next == ' ' ? code_at(&codes, i + 2) : next);
            continue;
        }
        run = 0;
        between = code == ' ' || (code >= '(' && code <= ')') || code == '.' || code == '-'
                      ? between + 1
                      : 3;
        if (is_money_sign(code)) {
            Py_UCS4 next = code_at(&codes, i + 1);
            money += next == '0' || (next == ' ' && code_at(&codes, i + 2) == '0');
        }
        else if (code == 'r' && code_at(&codes, i + 1) == 's') {
            Py_ssize_t after = i + 2;
            after += code_at(&codes, after) == '.';
            after += code_at(&codes, after) == ' ';
            money += code_at(&codes, after) == '0';
        }
    }
    codes_free(&codes);
    return Py_BuildValue("(nnnni)", phones, longest, money, percent, words);
}
