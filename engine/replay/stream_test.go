package replay

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

const chunk = `data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"llama-3-8b","choices":[{"index":0,"text":" the","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}` + "\n\n"

func FuzzListen(f *testing.F) {
	f.Add([]byte(chunk + "data: [DONE]\n\n"))
	f.Add([]byte("event: error\r\ndata: x\r\n\r\n: comment\n\ndata\n\n"))
	f.Add([]byte("\ufeffdata: {\"choices\":[{}],\"usage\":{\"completion_tokens\":1e99}}\ndata: 1\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		a, err := listen(bytes.NewReader(stream), time.Now)
		var known *failure
		if err != nil && !errors.As(err, &known) {
			t.Fatalf("an error without a kind: %v", err)
		}
		if err == nil && !bytes.Contains(stream, []byte(done)) {
			t.Fatal("a stream without [DONE] is taken for whole")
		}
		if a.events > 0 && a.last.Before(a.first) {
			t.Fatal("the last token is before the first")
		}
	})
}

// Allocations matter because the client shares the machine with the fleet that it measures.
func TestListenAllocations(t *testing.T) {
	testkit.SkipUnderRace(t)
	const n = 1000
	stream := strings.Repeat(chunk, n) + "data: [DONE]\n\n"
	allocs := testing.AllocsPerRun(10, func() {
		if a, err := listen(strings.NewReader(stream), time.Now); err != nil || a.events != n {
			t.Fatal(a, err)
		}
	})
	if allocs/n > 2.1 {
		t.Errorf("%.2f allocations per event, at most 2 are wanted", allocs/n)
	}
}

// TestRoleIsNoToken checks that the first event of a chat counts as no token, and that of an
// engine which repeats the role all others do: those of a model that reasons have no content.
func TestRoleIsNoToken(t *testing.T) {
	const start, end = `data: {"choices":[{"delta":{"role":"assistant","content":`, `},"finish_reason":null}]}` + "\n\n"
	for body, want := range map[string]int{
		start + `""` + end + `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n":                     1,
		start + `""` + end + strings.Repeat(start+`null,"reasoning_content":"a"`+end, 2):                  2,
		start + `""` + end + start + `""` + end + `data: {"choices":[{"delta":{"content":""}}]}` + "\n\n": 2,
		start + `"a"` + end + start + `"b"` + end:                                                         2,
	} {
		n := 0
		_, err := ReadStream(strings.NewReader(body+"data: [DONE]\n\n"), func(time.Time) { n++ })
		testkit.NoError(t, err)
		if n != want {
			t.Errorf("%d events with tokens, want %d:\n%s", n, want, body)
		}
	}
}
