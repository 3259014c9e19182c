package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// clientsVariable makes the test binary run as a process of many clients, so
// that measurements of the server contain no clients.
const clientsVariable = "CASCADE_XDS_CLIENTS"

// clientsMain runs the client process, and reports whether the test binary is
// one.
func clientsMain() bool {
	if os.Getenv(clientsVariable) == "" {
		return false
	}
	crowds := make(map[string]*clientGroup)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() { // until the test closes the pipe
		answer, err := executeCommand(crowds, strings.Fields(lines.Text()))
		if err != nil {
			answer = "error " + err.Error()
		}
		fmt.Println(answer)
	}
	return true
}

// executeCommand executes one command line.
func executeCommand(crowds map[string]*clientGroup, order []string) (string, error) {
	address := order[1]
	switch c := crowds[address]; order[0] {
	case "connect":
		var n int
		if _, err := fmt.Sscan(order[2], &n); err != nil {
			return "", err
		}
		c, err := connectClients(address, n)
		crowds[address] = c
		return "ok", err
	case "subscribe":
		return c.subscribe(order[2:])
	case "inherit":
		for i, n := range crowds[order[2]].nodes {
			c.nodes[i].got = n.got
		}
		return "ok", nil
	case "leave":
		c.closeStreams()
		return "ok", nil
	default:
		return "", errors.New("no such order")
	}
}

// clientGroup is the clients of one server.
type clientGroup struct {
	nodes []*groupClient
	wg    sync.WaitGroup
	end   context.CancelFunc
}

// groupClient is one client with a connection of its own.
type groupClient struct {
	id     string
	conn   *grpc.ClientConn
	got    map[string]map[string]string // versions by type and name; of the stream's goroutine
	answer map[string]bool              // types that have a response on this stream
}

// connectClients connects n clients without a subscription.
func connectClients(address string, n int) (*clientGroup, error) {
	c := new(clientGroup)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range n {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, &groupClient{id: fmt.Sprint("node-", i), conn: conn, got: make(map[string]map[string]string)})
		conn.Connect()
	}
	for _, n := range c.nodes {
		for s := n.conn.GetState(); s != connectivity.Ready; s = n.conn.GetState() {
			if !n.conn.WaitForStateChange(ctx, s) {
				return nil, ctx.Err()
			}
		}
	}
	return c, nil
}

// subscribe opens a stream for each client or, if the first word is "apart",
// for each of its types. The other words are types, each with names. Once every
// client has a response to everything, it returns the number of resources that
// came. Clients that subscribe again send the versions that they have.
func (c *clientGroup) subscribe(words []string) (string, error) {
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	apart := words[0] == "apart"
	if apart {
		words = words[1:]
	}
	var resources atomic.Int64
	var answered sync.WaitGroup
	failed := make(chan error, 1)
	for _, n := range c.nodes {
		var mu sync.Mutex // of the client, which may have several streams
		n.answer = make(map[string]bool)
		for i := range words {
			ask := words[i : i+1]
			if !apart {
				if ask = words; i > 0 {
					break
				}
			}
			answered.Add(len(ask))
			c.wg.Go(func() {
				if err := n.runStream(ctx, apart, ask, &mu, answered.Done, &resources); ctx.Err() == nil {
					select {
					case failed <- err:
					default:
					}
				}
			})
		}
	}
	done := make(chan struct{})
	go func() { answered.Wait(); close(done) }()
	select {
	case <-done:
		return fmt.Sprint(resources.Load()), nil
	case err := <-failed:
		return "", err
	case <-time.After(5 * time.Minute):
		return "", errors.New("not all were answered in five minutes")
	}
}

// runStream runs one stream of a client.
func (n *groupClient) runStream(ctx context.Context, apart bool, ask []string, mu *sync.Mutex, answered func(), resources *atomic.Int64) error {
	method := methods[""][0]
	if apart {
		typ, _, _ := strings.Cut(ask[0], "=")
		method = methods[shortTypes[typ]][0]
	}
	stream, err := n.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	node := envoyNode(n.id)
	for _, word := range ask {
		typ, list, _ := strings.Cut(word, "=")
		r := &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: shortTypes[typ]}
		if list != "" {
			r.ResourceNamesSubscribe = strings.Split(list, ",")
		}
		mu.Lock()
		r.InitialResourceVersions = maps.Clone(n.got[shortTypes[typ]])
		if len(r.InitialResourceVersions) > 0 && list != "" {
			n.answer[shortTypes[typ]] = true
			answered() // a client that lacks nothing by name gets no response
		}
		mu.Unlock()
		if err := stream.SendMsg(r); err != nil {
			return err
		}
		node = nil
	}
	for {
		m := new(discoveryv3.DeltaDiscoveryResponse)
		if err := stream.RecvMsg(m); err != nil {
			return err
		}
		mu.Lock()
		resources.Add(int64(len(m.Resources)))
		if n.got[m.TypeUrl] == nil {
			n.got[m.TypeUrl] = make(map[string]string)
		}
		for _, r := range m.Resources {
			n.got[m.TypeUrl][r.Name] = r.Version
		}
		first := !n.answer[m.TypeUrl]
		n.answer[m.TypeUrl] = true
		mu.Unlock()
		if err := stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.TypeUrl, ResponseNonce: m.Nonce}); err != nil {
			return err
		}
		if first {
			answered()
		}
	}
}

// closeStreams ends the streams, if there are any; the connections stay.
func (c *clientGroup) closeStreams() {
	c.end()
	c.wg.Wait()
}

// envoyNode returns a node message of the size of an Envoy's.
func envoyNode(id string) *corev3.Node {
	n := &corev3.Node{Id: id, Cluster: "edge", UserAgentName: "envoy"}
	for i := range 516 {
		n.Extensions = append(n.Extensions, &corev3.Extension{
			Category: "envoy.filters.http", Name: fmt.Sprintf("envoy.filters.http.extension_%03d", i),
			TypeUrls: []string{fmt.Sprintf("envoy.extensions.filters.http.extension_%03d.v3.Extension", i)},
		})
	}
	return n
}

// clientProcess is the client process as seen by the test that started it.
type clientProcess struct {
	tb  testing.TB
	in  io.WriteCloser
	out *bufio.Scanner
}

// startClientProcess starts a client process, which ends with the test.
func startClientProcess(tb testing.TB) *clientProcess {
	tb.Helper()
	self := testkit.Must(os.Executable())
	cmd := exec.Command(self, "-test.run=^$")
	cmd.Env = append(os.Environ(), clientsVariable+"=1")
	cmd.Stderr = os.Stderr
	in := testkit.Must(cmd.StdinPipe())
	out := testkit.Must(cmd.StdoutPipe())
	testkit.NoError(tb, cmd.Start())
	tb.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			tb.Error(err)
		}
	})
	return &clientProcess{tb, in, bufio.NewScanner(out)}
}

// command makes the clients execute a command and returns its result.
func (c *clientProcess) command(words ...string) string {
	c.tb.Helper()
	if _, err := fmt.Fprintln(c.in, strings.Join(words, " ")); err != nil {
		c.tb.Fatal(err)
	}
	if !c.out.Scan() {
		c.tb.Fatal("client process ended: ", c.out.Err())
	}
	if answer := c.out.Text(); !strings.HasPrefix(answer, "error ") {
		return answer
	}
	c.tb.Fatal(strings.Join(words[:2], " "), ": ", c.out.Text())
	return ""
}
