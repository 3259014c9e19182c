package replay

import (
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/engine/trace"
)

// shortWords and longWords are one token each, with the space before them, in
// OpenAI's cl100k_base and o200k_base vocabularies, and plain letters, which
// JSON does not escape. So a prompt of n words has n tokens.
const (
	shortWords = `an at be by do go he if in is it me my no of on or so to up us we
all and any are ask bad bed big bit box boy but buy can car cat cup cut day did dog dry due eat end eye far few fit for
fun gas get got had has hat her him his hit hot how ice its job key kid law lay led leg let lie lot low man map may men
met mix net new nor not now off oil old one our out own pay per put ran red run sad sat saw say sea see set she sir sit
six sky son sun tax tea ten the too top toy try two use via war was way who why win won yes yet you`
	longWords = `able also area away back ball bank base been best body book both call came case city come cost dark data
date days dead deal deep does done door down each east easy else even ever eyes face fact fall farm fast feel feet fell
felt file fine fire five food form four free from full game gave girl give goes gold gone good grew half hand hard have
head hear help here high hold home hope hour idea into just keep kept kind king knew know land last late lead left less
life like line list live long look lost love made main make many mark mind more most move much must name near need next
none note once only open over page part past plan play read real rest road room rule said same seem seen send sent show
side sign size some song soon sort stay step stop such sure take talk tell test text than that them then they this time
told took town tree true turn type unit upon used very view walk wall want warm week well went were west what when will
wind with word work year your about above after again begin being below black bring build carry cause child clean clear
close color could cover cross earth every field final first force found front given glass going great green group heart
heavy horse house human large later learn leave level light local money month music never night north often order other
paper party piece place plain plant point power quick quite reach ready right river round serve seven shall shape sharp`
)

const (
	// voices is how many kinds of text there are. They differ in bytes per
	// token (3.9 to 5.2), as languages and code do.
	voices = 16
	// markWords is how many words spell a 64-bit block id, a byte each.
	markWords = 8
	// firstID is the first token id used: those below are special or single
	// bytes in most vocabularies.
	firstID = 1000
	// vocabulary is the number of token ids to choose from.
	vocabulary = 32000
)

// words renders prompts. It is immutable and safe for concurrent use.
type words struct {
	mark  [256]string  // spells ids
	pages [voices]page // block text by voice
}

// page is the text of a block after its mark.
type page struct {
	text []byte
	end  [trace.BlockTokens - markWords + 1]int // bytes of the first i words
}

func newWords() *words {
	short, long := strings.Fields(shortWords), strings.Fields(longWords)
	w := &words{}
	for i, word := range append(short, long...)[:len(w.mark)] {
		w.mark[i] = " " + word
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for v := range w.pages {
		p := &w.pages[v]
		for i := 1; i < len(p.end); i++ {
			list := short
			if rng.Float64()*voices < float64(v) {
				list = long
			}
			p.text = append(p.text, ' ')
			p.text = append(p.text, list[rng.IntN(len(list))]...)
			p.end[i] = len(p.text)
		}
	}
	return w
}

// RandomText returns n random words, each with the space before it: one token each in OpenAI's vocabularies, and
// nearly so in others. Two texts have no prefix in common that an engine's cache could hold.
func RandomText(rng *rand.Rand, n int) string {
	list := strings.Fields(shortWords + " " + longWords)
	var b strings.Builder
	for range n {
		b.WriteByte(' ')
		b.WriteString(list[rng.IntN(len(list))])
	}
	return b.String()
}

// block returns the id of a request's b-th block. A block that the trace does not name is unique to the
// request.
func block(r trace.Request, index, b int) uint64 {
	if b < len(r.Prefix) {
		return r.Prefix[b]
	}
	return 1<<63 | uint64(index)<<20 | uint64(b)
}

// appendText appends Input words as a JSON string.
func (w *words) appendText(body []byte, r trace.Request, index int) []byte {
	body = append(body, '"')
	left := int(r.Input)
	for b := 0; left > 0; b++ {
		id := block(r, index, b)
		for i := range min(markWords, left) {
			body = append(body, w.mark[byte(id>>(8*i))]...)
		}
		// Neighbouring ids belong to one text and have one voice.
		p := &w.pages[scatter(id>>6)%voices]
		n := min(max(0, left-markWords), len(p.end)-1)
		body = append(body, p.text[:p.end[n]]...)
		left -= trace.BlockTokens
	}
	return append(body, '"')
}

// appendIDs appends Input token ids as a JSON array.
func appendIDs(body []byte, r trace.Request, index int) []byte {
	body = append(body, '[')
	for i := range int(r.Input) {
		if i > 0 {
			body = append(body, ',')
		}
		id := block(r, index, i/trace.BlockTokens)
		token := firstID + scatter(id*trace.BlockTokens+uint64(i%trace.BlockTokens))%(vocabulary-firstID)
		body = strconv.AppendUint(body, token, 10)
	}
	return append(body, ']')
}

// scatter is a bijection without patterns (the finaliser of SplitMix64).
func scatter(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// body returns the JSON of request i.
func (r *Replay) body(i int) []byte {
	request := r.cfg.Requests[i]
	// Six bytes a token hold both kinds of prompts.
	body := make([]byte, 0, 6*int(request.Input)+len(r.model)+256)
	body = append(body, `{"model":`...)
	body = append(body, r.model...)
	body = append(body, `,"prompt":`...)
	if r.cfg.Prompt == PromptIDs {
		body = appendIDs(body, request, i)
	} else {
		body = r.words.appendText(body, request, i)
	}
	body = append(body, `,"max_tokens":`...)
	body = strconv.AppendInt(body, int64(max(1, request.Output)), 10)
	return append(body, `,"ignore_eos":true,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`...)
}
