package attach

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// maxProgram bounds the RE2 program of one pattern, in instructions. Envoy refuses programs of
// more than 100 unless its configuration says otherwise. programOf is an upper bound of what
// RE2 makes of a pattern, and leaves some room for other versions of it.
const maxProgram = 90

// programBase is the part of a program that every pattern has: anchors, zeros, match and failure.
const programBase = 10

// rangePatterns returns RE2 patterns of which exactly one matches each of the decimal numbers
// from low to high, both inclusive, with any leading zeros; they match no other text. It needs
// 0 ≤ low ≤ high.
//
// Anchors make them right where a gateway looks for a match anywhere in the value; where the
// whole value has to match they change nothing.
func rangePatterns(low, high int64) (patterns []string) {
	var group []string
	size := programBase
	flush := func() {
		if len(group) > 0 {
			patterns = append(patterns, "^0*(?:"+strings.Join(group, "|")+")$")
		}
		group, size = nil, programBase
	}
	for _, alternative := range alternatives(low, high) {
		n := programOf(alternative)
		if size+n > maxProgram {
			flush()
		}
		group, size = append(group, alternative), size+n
	}
	flush()
	return patterns
}

// programOf returns the instructions of one alternative: one for each digit that it matches, and
// one for the choice.
func programOf(alternative string) int {
	n := 1
	for i := 0; i < len(alternative); i++ {
		switch alternative[i] {
		case '[': // a set of digits
			i += strings.IndexByte(alternative[i:], ']')
			n++
		case '{': // as many as it says of the set before
			end := i + strings.IndexByte(alternative[i:], '}')
			times, _ := strconv.Atoi(alternative[i+1 : end]) // written by anyDigits
			n, i = n+times-1, end
		default:
			n++
		}
	}
	return n
}

// alternatives returns patterns without anchors for the numbers from low to high, by their
// number of digits. Each number has exactly one.
func alternatives(low, high int64) (all []string) {
	for first, digits := int64(0), 1; first <= high; digits++ {
		last := int64(math.MaxInt64) // of this many digits
		if first <= math.MaxInt64/10 {
			last = max(first, 1)*10 - 1
		}
		if from, to := max(low, first), min(high, last); from <= to {
			all = append(all, equalLength(pad(from, digits), pad(to, digits))...)
		}
		if last == math.MaxInt64 {
			break
		}
		first = last + 1
	}
	return all
}

func pad(n int64, digits int) string { return fmt.Sprintf("%0*d", digits, n) }

// equalLength returns the alternatives for the numbers from low to high, which have the same
// number of digits.
func equalLength(low, high string) (out []string) {
	if low == high {
		return []string{low}
	}
	if low[0] == high[0] {
		for _, rest := range equalLength(low[1:], high[1:]) {
			out = append(out, low[:1]+rest)
		}
		return out
	}
	// The numbers that begin with the first digit of low, those of high, and between them every
	// number of the digits between.
	n := len(low) - 1
	from, to := low[0], high[0]
	var tail []string
	if low[1:] != strings.Repeat("0", n) {
		for _, rest := range equalLength(low[1:], strings.Repeat("9", n)) {
			out = append(out, low[:1]+rest)
		}
		from++
	}
	if high[1:] != strings.Repeat("9", n) {
		for _, rest := range equalLength(strings.Repeat("0", n), high[1:]) {
			tail = append(tail, high[:1]+rest)
		}
		to--
	}
	if from <= to {
		out = append(out, digit(from, to)+anyDigits(n))
	}
	return append(out, tail...)
}

func digit(from, to byte) string {
	if from == to {
		return string(from)
	}
	return "[" + string(from) + "-" + string(to) + "]"
}

func anyDigits(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "[0-9]"
	}
	return "[0-9]{" + strconv.Itoa(n) + "}"
}
