package attach

import (
	"fmt"
	"strconv"
	"strings"
)

// rangePattern returns an RE2 pattern that matches the decimal numbers from low to high, both
// inclusive, with any leading zeros, and no other text. It needs 0 ≤ low ≤ high.
//
// Anchors make it right where a gateway looks for a match anywhere in the value; where the
// whole value has to match they change nothing.
func rangePattern(low, high int64) string {
	var all []string
	for first, digits := int64(0), 1; first <= high; digits++ {
		last := int64(1)
		for range digits {
			if last > (1<<63-1)/10 {
				last = 0 // beyond int64: no further power of ten
				break
			}
			last *= 10
		}
		if last--; last < 0 {
			last = 1<<63 - 1
		}
		if from, to := max(low, first), min(high, last); from <= to {
			all = append(all, equalLength(pad(from, digits), pad(to, digits))...)
		}
		if last == 1<<63-1 {
			break
		}
		first = last + 1
	}
	return "^0*(?:" + strings.Join(all, "|") + ")$"
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
