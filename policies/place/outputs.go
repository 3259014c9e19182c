package place

import (
	"math/bits"

	"github.com/cascadeinfer/cascade/policies"
)

// Outputs learns how many tokens requests generate, by the octave of their prompts' lengths, and expects as
// many of those that run. The zero value knows nothing.
type Outputs struct {
	all      outputCounts
	byPrompt [promptOctaves]outputCounts
}

const (
	// DefaultOutput is expected while nothing has ended.
	DefaultOutput policies.Tokens = 128
	// minOutputs is how many ends an octave of prompts needs before it counts by itself.
	minOutputs = 30
	// maxOutputs is how many ends are remembered about: beyond it, what came before counts half.
	maxOutputs = 4096
	// Outputs are counted in 8 buckets an octave.
	outputBits    = 3
	outputBuckets = 22 << outputBits
	promptOctaves = 22
)

// outputCounts is a histogram of outputs.
type outputCounts struct {
	ends   float64
	counts [outputBuckets]float32
	sums   [outputBuckets]float32
}

// Observe adds the end of a request.
func (o *Outputs) Observe(input, output policies.Tokens) {
	if output < 1 {
		return
	}
	o.all.observe(output)
	o.byPrompt[promptOctave(input)].observe(output)
}

// Expect returns how many tokens a request is expected to generate in all, if it has generated so many and
// may generate at most so many; 0: any number. It is more than generated, and not more than most.
func (o *Outputs) Expect(input, generated, most policies.Tokens) policies.Tokens {
	generated = max(generated, 0)
	expected, ok := policies.Tokens(0), false
	if c := &o.byPrompt[promptOctave(input)]; c.ends >= minOutputs {
		expected, ok = c.expect(generated)
	}
	if !ok {
		expected, ok = o.all.expect(generated)
	}
	if !ok {
		// It has outlived all that ended: it is about to end, or nothing is known of its kind.
		expected = max(DefaultOutput, generated+generated/5)
	}
	expected = max(expected, generated+1)
	if most > 0 {
		expected = min(expected, max(most, generated+1))
	}
	return expected
}

func (c *outputCounts) observe(output policies.Tokens) {
	i := outputBucket(output)
	c.counts[i]++
	c.sums[i] += float32(output)
	if c.ends++; c.ends < maxOutputs {
		return
	}
	c.ends /= 2
	for i := range c.counts {
		c.counts[i] /= 2
		c.sums[i] /= 2
	}
}

// expect returns the mean of those outputs that are longer; false if there are none.
func (c *outputCounts) expect(generated policies.Tokens) (policies.Tokens, bool) {
	first := 0
	if generated > 0 {
		first = outputBucket(generated) + 1 // its own bucket is half over: leave it out
	}
	var count, sum float32
	for i := first; i < outputBuckets; i++ {
		count, sum = count+c.counts[i], sum+c.sums[i]
	}
	if count < 1e-3 {
		return 0, false
	}
	return policies.Tokens(sum / count), true
}

// outputBucket returns the bucket of a number of tokens, at least 1.
func outputBucket(n policies.Tokens) int {
	octave := bits.Len64(uint64(n)) - 1
	part := 0
	if octave >= outputBits {
		part = int(n>>(octave-outputBits)) - 1<<outputBits
	} else {
		part = int(n<<(outputBits-octave)) - 1<<outputBits
	}
	return min(octave<<outputBits+part, outputBuckets-1)
}

// promptOctave returns the octave of a prompt's length.
func promptOctave(n policies.Tokens) int {
	return min(bits.Len64(uint64(max(n, 1)))-1, promptOctaves-1)
}
