package host

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// play makes and records calls of all kinds on a new instance.
func play(t *testing.T, m *Module, rounds int) (records []Record, memory [sha256.Size]byte) {
	t.Helper()
	i := testkit.Must(m.Instantiate())
	defer i.Close()
	r := hosttest.NewRandom(7)
	for n := range rounds {
		c := abi.Call{ID: uint64(n), Seed: r.Uint64(), Room: 16}
		records = append(records, Record{})
		i.Record(&records[len(records)-1])
		var err error
		switch n % 7 {
		case 0:
			_, err = Ask(i, &abi.SelectCodec, c, r.Bids())
		case 1:
			_, err = Ask(i, &abi.QuoteCodec, c, r.QuoteArgs())
		case 2:
			_, err = Ask(i, &abi.OutlierCodec, c, r.Loads())
		case 3:
			_, err = Ask(i, &abi.PlaceCodec, c, r.Arrival())
		case 4:
			_, err = Ask(i, &abi.RefineCodec, c, r.Boundary())
		case 5:
			_, err = Ask(i, &abi.PartitionCodec, c, policytest.RandomWorkload(r.Rand))
		case 6:
			_, err = Ask(i, &abi.GuardCodec, c, r.Change())
		}
		if err != nil {
			t.Fatalf("call %d: %v", n, err)
		}
	}
	return records, i.Hash()
}

// digest returns a digest of everything that must be equal in two runs.
func digest(records []Record, memory [sha256.Size]byte) string {
	h := sha256.New()
	for _, r := range records {
		h.Write(r.Frame)
		h.Write(r.Output)
		binary.Write(h, binary.LittleEndian, []uint64{r.Result, uint64(r.Fuel), uint64(r.Cause)})
	}
	h.Write(memory[:])
	return hex.EncodeToString(h.Sum(nil))
}

// childRounds is the environment variable that makes the test binary the second process.
const childRounds = "CASCADE_HOST_REPLAY"

// TestReplayIsTheSameInTwoProcesses compares results, outputs, fuel and the whole memory of a
// replay in two processes.
func TestReplayIsTheSameInTwoProcesses(t *testing.T) {
	rounds := testkit.Size(2100, 105_000)
	m := guest(t, Config{})
	records, memory := play(t, m, rounds)
	sum := digest(records, memory)
	if os.Getenv(childRounds) != "" {
		t.Log("digest " + sum)
		return
	}
	// Again on another instance, from the frames alone.
	i := instance(t, m)
	var got Record
	for n := range records {
		if err := i.Replay(records[n].Frame, &got); err != nil || !got.Equal(&records[n]) {
			t.Fatalf("call %d: %v\n%+v\n%+v", n, err, got, records[n])
		}
	}
	if i.Hash() != memory {
		t.Error("the memories differ")
	}
	t.Logf("%d frames: digest %.16s, memory %x", len(records), sum, memory[:8])
	cmd := exec.Command(os.Args[0], "-test.run", "^TestReplayIsTheSameInTwoProcesses$", "-test.v")
	cmd.Env = append(os.Environ(), childRounds+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "digest "+sum) {
		t.Errorf("the other process: %v\n%s\nwant %s", err, out, sum)
	}
}

// TestReplayChecksRules checks that a replay refuses an invalid answer even if it was
// recorded.
func TestReplayChecksRules(t *testing.T) {
	good := testkit.Must(abi.SelectCodec.Frame(abi.Call{}, sixteen()))
	for _, c := range []struct {
		result []byte
		cause  Cause
	}{
		{hosttest.Result(0, 15), 0},
		{hosttest.Result(0, 16), BadOutput},
		{hosttest.Result(5, 0), Refused},
		{hosttest.Unreachable, Trapped},
	} {
		i := hand(t, selects(c.result))
		var r Record
		if err := i.Replay(good, &r); CauseOf(err) != c.cause || r.Cause != c.cause || !bytes.Equal(r.Frame, good) {
			t.Errorf("%v, %v; want %v", err, r.Cause, c.cause)
		}
	}
	i := hand(t, hosttest.LeastLoad())
	for _, frame := range [][]byte{nil, make([]byte, 200), good[:50]} {
		var r Record
		if err := i.Replay(frame, &r); err == nil || i.Dead() != nil {
			t.Errorf("a frame of %d bytes: %v", len(frame), err)
		}
	}
	if err := i.Replay(testkit.Must(abi.QuoteCodec.Frame(abi.Call{}, abi.QuoteArgs{})), &Record{}); CauseOf(err) != Unknown {
		t.Error(err)
	}
}

// FuzzReplay replays arbitrary frames.
func FuzzReplay(f *testing.F) {
	f.Add(testkit.Must(abi.SelectCodec.Frame(abi.Call{}, sixteen())))
	f.Add(testkit.Must(abi.QuoteCodec.Frame(abi.Call{}, abi.QuoteArgs{})))
	m := load(f, Config{}, hosttest.Policy(hosttest.LeastLoad()).Encode())
	f.Fuzz(func(t *testing.T, frame []byte) {
		i := testkit.Must(m.Instantiate())
		defer i.Close()
		var r Record
		if err := i.Replay(frame, &r); err == nil && r.Fuel <= 0 {
			t.Error("an answer for nothing")
		}
	})
}
