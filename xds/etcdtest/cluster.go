package etcdtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// Config configures Start.
type Config struct {
	// Members is the number of members; 0 means 1.
	Members int
	// Args are further arguments of each member, such as "--quota-backend-bytes=16777216".
	Args []string
	// Scheme is http, the default, or https, for which Args name the files.
	Scheme string
	// Namespace, unless it is nil, is where the members run. Their endpoints are by its first link, and each of its other
	// links reaches them at its own address and the same port.
	Namespace *testkit.Namespace
}

// Cluster is a running etcd cluster, without TLS between its members.
type Cluster struct {
	Members []*Member
	t       testing.TB
	scheme  string
}

// Member is one process of a cluster.
type Member struct {
	Endpoint string // host:port for clients

	t               testing.TB
	command         []string
	log             *testkit.Log
	testkit.Process // Kill ends it without a shutdown. No pointer: methods bound before Restart reach the new process
}

// readyWithin bounds the start of a cluster on a loaded machine.
const readyWithin = time.Minute

// Start runs a cluster until the end of the test, and returns when it has a leader. If the
// test fails, it logs the end of what each member has written.
func Start(t testing.TB, cfg Config) *Cluster {
	t.Helper()
	binary, dir, n := Binary(t), t.TempDir(), max(1, cfg.Members)
	c := &Cluster{t: t, scheme: cfg.Scheme}
	if c.scheme == "" {
		c.scheme = "http"
	}
	addresses := freeAddresses(t, 2*n)
	var initial []string
	for i := range n {
		initial = append(initial, fmt.Sprintf("m%d=http://%s", i, addresses[n+i]))
	}
	for i := range n {
		listen, peer := addresses[i], "http://"+addresses[n+i]
		m := &Member{Endpoint: listen, t: t, log: &testkit.Log{}}
		if cfg.Namespace != nil {
			_, port, _ := net.SplitHostPort(listen)
			listen, m.Endpoint = "0.0.0.0:"+port, net.JoinHostPort(cfg.Namespace.Links[0].Address, port)
		}
		m.command = append([]string{
			binary, "--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(dir, fmt.Sprintf("m%d", i)),
			"--listen-client-urls", c.scheme + "://" + listen, "--advertise-client-urls", c.scheme + "://" + m.Endpoint,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(initial, ","), "--logger", "zap", "--log-level", "warn",
		}, cfg.Args...)
		if cfg.Namespace != nil {
			m.command = cfg.Namespace.Command(m.command...)
		}
		c.Members = append(c.Members, m)
		m.launch()
		t.Cleanup(func() {
			m.Kill()
			if text := m.log.String(); t.Failed() && text != "" {
				t.Logf("etcd at %s:\n%s", m.Endpoint, text[max(0, len(text)-4096):])
			}
		})
	}
	c.WaitReady()
	return c
}

// freeAddresses returns addresses on loopback that no process listens on.
func freeAddresses(t testing.TB, n int) (out []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		testkit.NoError(t, err)
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out
}

// Endpoints returns the members' addresses for clients.
func (c *Cluster) Endpoints() (out []string) {
	for _, m := range c.Members {
		out = append(out, m.Endpoint)
	}
	return out
}

// WaitReady waits until the members that run can write.
func (c *Cluster) WaitReady() {
	c.t.Helper()
	if c.scheme != "http" {
		for _, m := range c.Members {
			testkit.WaitFor(c.t, "etcd listens", func() bool {
				c.requireQuorum()
				conn, err := net.Dial("tcp", m.Endpoint)
				if err == nil {
					conn.Close()
				}
				return err == nil
			})
		}
		return
	}
	client := c.Client()
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	for {
		c.requireQuorum()
		attempt, end := context.WithTimeout(ctx, time.Second)
		_, err := client.Put(attempt, "/etcdtest/ready", "")
		end()
		switch {
		case err == nil:
			return
		case ctx.Err() != nil:
			c.t.Fatalf("etcdtest: the cluster is not ready: %v", err)
		}
	}
}

// requireQuorum fails the test if so many members have ended that none of the others can write.
func (c *Cluster) requireQuorum() {
	c.t.Helper()
	running := len(c.Members)
	for _, m := range c.Members {
		select {
		case <-m.Ended():
			running--
		default:
		}
	}
	if 2*running <= len(c.Members) {
		c.t.Fatalf("etcdtest: %d of %d members run", running, len(c.Members))
	}
}

// Client returns a client of the whole cluster for the test's own requests; it is closed
// when the test ends.
func (c *Cluster) Client() *clientv3.Client {
	c.t.Helper()
	endpoints := make([]string, len(c.Members))
	for i, m := range c.Members {
		endpoints[i] = "http://" + m.Endpoint
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	testkit.NoError(c.t, err)
	c.t.Cleanup(func() { client.Close() })
	return client
}

// Leader returns the member that leads.
func (c *Cluster) Leader() *Member {
	c.t.Helper()
	client := c.Client()
	var leader *Member
	testkit.WaitFor(c.t, "etcd has a leader", func() bool {
		for _, m := range c.Members {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			s, err := client.Status(ctx, "http://"+m.Endpoint)
			cancel()
			if err == nil && s.Leader != 0 && s.Leader == s.Header.MemberId {
				leader = m
			}
		}
		return leader != nil
	})
	return leader
}

func (m *Member) launch() {
	m.t.Helper()
	cmd := exec.Command(m.command[0], m.command[1:]...)
	cmd.Stdout, cmd.Stderr = m.log, m.log
	m.Process = *testkit.Must(testkit.StartProcess(cmd))
}

// Restart starts a member after Kill, with what it has stored.
func (m *Member) Restart() { m.t.Helper(); m.launch() }

// Compact removes the history of all keys, as etcd's own compaction does.
func (c *Cluster) Compact() {
	c.t.Helper()
	client := c.Client()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := client.Put(ctx, "/etcdtest/ready", "")
	testkit.NoError(c.t, err)
	_, err = client.Compact(ctx, r.Header.Revision)
	testkit.NoError(c.t, err)
}

// Fill writes until the database has no space left. The cluster should have a small quota.
func (c *Cluster) Fill() {
	c.t.Helper()
	client := c.Client()
	for i := range 1000 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, err := client.Put(ctx, fmt.Sprintf("/etcdtest/fill/%04d", i), string(bytes.Repeat([]byte("x"), 1<<20)))
		cancel()
		if err != nil && strings.Contains(err.Error(), "space exceeded") {
			return
		}
		testkit.NoError(c.t, err)
	}
	c.t.Fatal("etcdtest: the database is not full after 1000 MiB")
}

// Empty undoes Fill as an operator would: it removes, compacts, defragments and disarms.
func (c *Cluster) Empty() {
	c.t.Helper()
	client := c.Client()
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	r, err := client.Delete(ctx, "/etcdtest/fill/", clientv3.WithPrefix())
	testkit.NoError(c.t, err)
	_, err = client.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical())
	testkit.NoError(c.t, err)
	for _, m := range c.Members {
		_, err = client.Defragment(ctx, "http://"+m.Endpoint)
		testkit.NoError(c.t, err)
	}
	_, err = client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	testkit.NoError(c.t, err)
}
