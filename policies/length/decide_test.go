package length

import (
	"encoding/json"
	"testing"
)

func TestStep(t *testing.T) {
	const most = 1000
	for _, c := range []struct {
		h    Headers
		step Strategy
		size int64
	}{
		{Headers{Ended: true}, ModelOnly, 0},
		{Headers{Ended: true, Model: true, ContentLength: "7"}, ModelOnly, 0},
		{Headers{Model: true, ContentLength: "7"}, BySize, 7},
		{Headers{Model: true, ContentLength: "0"}, BySize, 0},
		{Headers{Model: true, ContentLength: "9223372036854775807"}, BySize, 1<<63 - 1},
		{Headers{Model: true, ContentLength: "9223372036854775808"}, ByBody, -1},
		{Headers{Model: true}, ByBody, -1},
		{Headers{Model: true, ContentLength: "7,7"}, ByBody, -1},
		{Headers{Model: true, ContentLength: "+7"}, ByBody, -1},
		{Headers{Model: true, ContentLength: "-7"}, ByBody, -1},
		{Headers{ContentLength: "1000"}, ByBody, 1000},
		{Headers{ContentLength: "1001"}, RejectBody, 1001},
		{Headers{}, ByBody, -1},
	} {
		if step, size := c.h.Strategy(most); step != c.step || size != c.size {
			t.Errorf("%+v: step %d, size %d; want %d, %d", c.h, step, size, c.step, c.size)
		}
	}
}

func TestTooLargeIsJSON(t *testing.T) {
	var e struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal([]byte(TooLargeBody(16<<20)), &e); err != nil || e.Error.Code != "request_too_large" || e.Error.Message != "The request body is larger than 16777216 bytes." {
		t.Errorf("%+v, %v", e, err)
	}
}
