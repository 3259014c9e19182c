package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// BenchmarkRequest sends requests one after the other per goroutine through the proxy;
// client, proxy and front end share the machine and the process.
func BenchmarkRequest(b *testing.B) {
	for _, c := range []struct {
		name                   string
		http2, chunked, direct bool
		size                   int
	}{
		{"direct/http1/1KiB", false, false, true, 1 << 10},
		{"http1/1KiB", false, false, false, 1 << 10},
		{"http2/1KiB", true, false, false, 1 << 10},
		{"direct/http1/220KiB", false, false, true, 220 << 10},
		{"http1/220KiB", false, false, false, 220 << 10},
		{"http1/220KiB-chunked", false, true, false, 220 << 10},
		{"http2/220KiB", true, false, false, 220 << 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := newFleet(b, 4, nil)
			url := f.url
			if c.direct {
				url = "http://" + f.fronts[0].address
			}
			client := http.Client{Transport: transport(b, c.http2)}
			body := prompt("m", c.size)
			b.ReportAllocs()
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					var r io.Reader = bytes.NewReader(body)
					if c.chunked {
						r = chunked{r}
					}
					resp, err := client.Post(url+"/sink", "application/json", r)
					if err != nil {
						b.Error(err)
						return
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
		})
	}
}

// BenchmarkEvent measures one server-sent event from front end to client on one stream.
func BenchmarkEvent(b *testing.B) {
	f := newFleet(b, 2, nil)
	for _, direct := range []bool{true, false} {
		b.Run(fmt.Sprintf("direct=%v", direct), func(b *testing.B) {
			url := f.url
			if direct {
				url = "http://" + f.fronts[0].address
			}
			b.ReportAllocs()
			resp, err := http.Post(fmt.Sprintf("%s/sse?n=%d&gap=0s", url, b.N), "application/json",
				bytes.NewReader(prompt("m", 100)))
			testkit.NoError(b, err)
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		})
	}
}
