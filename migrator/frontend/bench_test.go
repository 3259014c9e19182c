package frontend

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// benchEngineVariable is the environment variable that makes the test binary a
// server for the engine that it names.
const benchEngineVariable = "CASCADE_STREAM_BENCH_ENGINE"

// runBenchServer runs a server until its standard input ends. It prints its
// address, and for every line that it reads its CPU time in ns and its resident
// memory in bytes.
func runBenchServer(engine string) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	f, err := New(Config{Replica: "bench", Engine: engine, Edges: policies.BucketEdges(1<<17, 4), Listener: lis})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	for !f.Status().EngineReady {
		time.Sleep(time.Millisecond)
	}
	fmt.Println(lis.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var u syscall.Rusage
		syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		fmt.Println(u.Utime.Nano()+u.Stime.Nano(), residentBytes())
	}
	cancel()
	<-done
}

// residentBytes returns the process's resident memory, 0 on systems without
// /proc.
func residentBytes() int64 {
	b, _ := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// serverProcess is a server in a process of its own.
type serverProcess struct {
	address string
	in      io.WriteCloser
	out     *bufio.Reader
}

func startServerProcess(b *testing.B, engine string) *serverProcess {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchEngineVariable+"="+engine)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	testkit.NoError(b, cmd.Start())
	b.Cleanup(func() { in.Close(); cmd.Wait() })
	p := &serverProcess{in: in, out: bufio.NewReader(out)}
	line := testkit.Must(p.out.ReadString('\n'))
	p.address = strings.TrimSpace(line)
	return p
}

func (p *serverProcess) usage(b *testing.B) (cpu time.Duration, rss int64) {
	fmt.Fprintln(p.in)
	testkit.Must(fmt.Fscan(p.out, &cpu, &rss))
	return cpu, rss
}

// broadcastEngine is an engine whose streams all get a token when broadcast is
// called; the token's text is the time. It uses as little CPU as it can.
type broadcastEngine struct {
	lis   net.Listener
	first string // the first event's prompt ids
	mu    sync.Mutex
	conns []net.Conn
}

func newBroadcastEngine(b *testing.B, promptTokens int) *broadcastEngine {
	lis := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	b.Cleanup(func() { lis.Close() })
	ids := make([]uint32, promptTokens)
	for i := range ids {
		ids[i] = uint32(i * 7919 % 150000)
	}
	c := &broadcastEngine{lis: lis, first: formatIDs(ids, true)}
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go c.accept(conn)
		}
	}()
	return c
}

func (c *broadcastEngine) accept(conn net.Conn) {
	in := bufio.NewReaderSize(conn, 512)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			conn.Close()
			return
		}
		io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodGet {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			continue
		}
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"+httpChunk(tokenEvent(c.first)))
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
		return
	}
}

func tokenEvent(prompt string) string {
	return fmt.Sprintf(`data: {"id":"cmpl-87796b7e5fba9c00","object":"text_completion","created":1795223477,"model":"tiny","choices":[{"index":0,"text":"%d","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":%s,"token_ids":[485]}]}`+"\n\n", time.Now().UnixNano(), prompt)
}

func httpChunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// broadcast sends a token to every stream, in the given number of parts, one each
// millisecond.
func (c *broadcastEngine) broadcast(parts int) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i, conn := range c.conns {
		if parts > 1 && i%(len(c.conns)/parts) == 0 {
			<-tick.C
		}
		io.WriteString(conn, httpChunk(tokenEvent("null")))
	}
}

// streamClient is a client of one stream.
type streamClient struct {
	src   io.Reader
	close func() error
}

const body = `{"model":"tiny","prompt":"x","stream":true,"max_tokens":100000}`

// open starts a stream at an address: over HTTP/2 if via is not nil, else on a
// connection of its own without the cost of an http.Client.
func (r *streamClient) open(address string, via *http.Transport) error {
	if via == nil {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		r.src, r.close = conn, conn.Close
		_, err = fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		return err
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+address+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := via.RoundTrip(req)
	if err != nil {
		return err
	}
	r.src, r.close = resp.Body, resp.Body.Close
	return nil
}

// read reads n tokens; record gets the latency of each.
func (r *streamClient) read(n int, record func(time.Duration)) error {
	buf := make([]byte, 8<<10)
	have := 0
	for n > 0 {
		m, err := r.src.Read(buf[have:])
		if err != nil {
			return err
		}
		now := time.Now().UnixNano()
		have += m
		text := string(buf[:have])
		for {
			_, rest, ok := strings.Cut(text, `"text":"`)
			digits, after, ended := strings.Cut(rest, `"`)
			if !ok || !ended {
				break
			}
			at, _ := strconv.ParseInt(digits, 10, 64)
			if record != nil {
				record(time.Duration(now - at))
			}
			n--
			text = after
		}
		if len(text) > 7<<10 { // the end of the first event, which is long when ids are wanted
			text = text[len(text)-64:]
		}
		have = copy(buf, text)
	}
	return nil
}

// openStreams opens n streams at an address, in parallel, up to their first token.
func openStreams(b *testing.B, n int, address string, protocol string) []*streamClient {
	var via *http.Transport
	if protocol == "h2c" {
		via = &http.Transport{Protocols: new(http.Protocols)}
		via.Protocols.SetUnencryptedHTTP2(true)
		b.Cleanup(via.CloseIdleConnections)
	}
	all := make([]*streamClient, n)
	errs := make(chan error, n)
	gate := make(chan struct{}, 64)
	for i := range all {
		all[i] = new(streamClient)
		gate <- struct{}{}
		go func() {
			defer func() { <-gate }()
			err := all[i].open(address, via)
			if err == nil {
				err = all[i].read(1, nil)
			}
			errs <- err
		}()
	}
	for range all {
		testkit.NoError(b, <-errs)
	}
	b.Cleanup(func() {
		for _, r := range all {
			r.close()
		}
	})
	return all
}

// BenchmarkStreams2000 relays ten tokens a second on each of 2,000 streams. It
// measures the server's CPU time per token, and how much later than at the engine
// a token reaches its client. The tokens come evenly, or all at once as after an
// engine's iteration; then most of the delay is the wait for the other tokens.
func BenchmarkStreams2000(b *testing.B) {
	for _, arrive := range []struct {
		name  string
		parts int
	}{{"even", 80}, {"burst", 1}} {
		for _, through := range []string{"direct", "http/1.1", "h2c"} {
			b.Run(arrive.name+"/"+through, func(b *testing.B) { benchmarkStreams(b, through, arrive.parts) })
		}
	}
}

func benchmarkStreams(b *testing.B, through string, parts int) {
	const streams = 2000
	c := newBroadcastEngine(b, 1000)
	address := c.lis.Addr().String()
	var p *serverProcess
	if through != "direct" {
		p = startServerProcess(b, "http://"+address)
		address = p.address
	}
	all := openStreams(b, streams, address, through)
	var mu sync.Mutex
	var late []time.Duration
	var cpu time.Duration
	if p != nil {
		cpu, _ = p.usage(b)
	}
	rounds := max(b.N, 10)
	var wg sync.WaitGroup
	for _, r := range all {
		wg.Go(func() {
			var own []time.Duration
			if err := r.read(rounds, func(d time.Duration) { own = append(own, d) }); err != nil {
				b.Error(err)
			}
			mu.Lock()
			late = append(late, own...)
			mu.Unlock()
		})
	}
	b.ResetTimer()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range rounds {
		c.broadcast(parts)
		<-tick.C
	}
	wg.Wait()
	b.StopTimer()
	tokens := float64(rounds * streams)
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)/2].Microseconds()), "p50-µs-late")
	b.ReportMetric(float64(late[len(late)*99/100].Microseconds()), "p99-µs-late")
	if p != nil {
		after, _ := p.usage(b)
		b.ReportMetric(float64((after-cpu).Nanoseconds())/tokens, "front-cpu-ns/token")
	}
}

// BenchmarkMemory10000 holds 10,000 streams, or as many as open files allow, of
// 1,000 prompt tokens and a few generated ones. It measures the server's memory
// per stream, in a process of its own, less what it uses without streams.
func BenchmarkMemory10000(b *testing.B) {
	for _, protocol := range []string{"http/1.1", "h2c"} {
		b.Run(protocol, func(b *testing.B) { benchmarkMemory(b, protocol) })
	}
}

func benchmarkMemory(b *testing.B, protocol string) {
	const prompt, rounds = 1000, 20
	var limit syscall.Rlimit
	syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	streams := min(10_000, int(limit.Cur-200)/2)
	for range b.N {
		c := newBroadcastEngine(b, prompt)
		p := startServerProcess(b, "http://"+c.lis.Addr().String())
		_, rest := p.usage(b)
		all := openStreams(b, streams, p.address, protocol)
		for range rounds {
			c.broadcast(1)
			for _, r := range all {
				testkit.NoError(b, r.read(1, nil))
			}
		}
		_, full := p.usage(b)
		per := float64(full-rest) / float64(streams)
		b.ReportMetric(float64(streams), "streams")
		b.ReportMetric(per, "B/stream")
		b.ReportMetric((per-8*(prompt+rounds+1))/1024, "KiB/stream-less-8-B/token")
	}
}

// BenchmarkTTFT220KiB is the time from a 220 KiB request to the first token.
func BenchmarkTTFT220KiB(b *testing.B) {
	engine := http.NewServeMux()
	engine.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	engine.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, tokenEvent("[1,2,3]"))
		w.(http.Flusher).Flush()
		io.WriteString(w, "data: [DONE]\n\n")
	})
	lis := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	s := &http.Server{Handler: engine}
	go s.Serve(lis)
	b.Cleanup(func() { s.Close() })
	prompt := strings.Repeat("All happy families are alike; each unhappy one is so in its own way. \\n", 220<<10/72)
	large := `{"model":"tiny","prompt":"` + prompt + `","stream":true}`
	for _, through := range []string{"direct", "front"} {
		b.Run(through, func(b *testing.B) {
			address := lis.Addr().String()
			if through == "front" {
				address = startServerProcess(b, "http://"+address).address
			}
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			one := make([]byte, 1)
			var first []time.Duration
			for b.Loop() {
				begin := time.Now()
				resp := testkit.Must(client.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(large)))
				testkit.Must(io.ReadFull(resp.Body, one))
				first = append(first, time.Since(begin))
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			slices.Sort(first)
			b.ReportMetric(float64(first[len(first)/2].Microseconds()), "p50-µs-ttft")
			b.ReportMetric(float64(first[len(first)*99/100].Microseconds()), "p99-µs-ttft")
		})
	}
}
