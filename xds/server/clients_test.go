package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
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
		if err := executeCommand(crowds, strings.Fields(lines.Text())); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("ok")
	}
	return true
}

// executeCommand executes one command line.
func executeCommand(crowds map[string]*clientGroup, order []string) (err error) {
	address := order[1]
	switch c := crowds[address]; order[0] {
	case "connect":
		n, err := strconv.Atoi(order[2])
		if err != nil {
			return err
		}
		crowds[address], err = connectClients(address, n)
		return err
	case "subscribe":
		c.subscribe(order[2:])
	case "leave":
		c.end()
		c.wg.Wait()
	default:
		return errors.New("no such order")
	}
	return nil
}

// clientGroup is the clients of one server.
type clientGroup struct {
	nodes []*groupClient
	wg    sync.WaitGroup
	end   context.CancelFunc
}

// groupClient is one client with a connection of its own.
type groupClient struct {
	id   string
	conn *grpc.ClientConn
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
		c.nodes = append(c.nodes, &groupClient{fmt.Sprint("node-", i), conn})
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
// for each of its types, and does not wait for responses. The other words are
// types, each with names.
func (c *clientGroup) subscribe(words []string) {
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	streams := map[string][]string{methods[""][0]: words} // what is asked for, by method
	if words[0] == "apart" {
		streams = make(map[string][]string)
		for _, word := range words[1:] {
			typ, _, _ := strings.Cut(word, "=")
			streams[methods[shortTypes[typ]][0]] = []string{word}
		}
	}
	for _, n := range c.nodes {
		for method, ask := range streams {
			c.wg.Go(func() {
				if err := n.runStream(ctx, method, ask); ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, "stream of", n.id, "ended:", err)
				}
			})
		}
	}
}

// runStream runs one stream of a client, which acknowledges every response.
func (n *groupClient) runStream(ctx context.Context, method string, ask []string) error {
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
		if err := stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.TypeUrl, ResponseNonce: m.Nonce}); err != nil {
			return err
		}
	}
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

// command makes the clients execute a command.
func (c *clientProcess) command(words ...string) {
	c.tb.Helper()
	if _, err := fmt.Fprintln(c.in, strings.Join(words, " ")); err != nil {
		c.tb.Fatal(err)
	}
	if !c.out.Scan() {
		c.tb.Fatal("client process ended: ", c.out.Err())
	}
	if answer := c.out.Text(); answer != "ok" {
		c.tb.Fatal(strings.Join(words[:2], " "), ": ", answer)
	}
}
