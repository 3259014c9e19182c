package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
	"github.com/cascadeinfer/cascade/xds/control"
)

// topTimeout bounds one poll of "cascade top": longer, and the control plane counts as away.
const topTimeout = 3 * time.Second

// topMigrations is how many of the latest migrations "cascade top" asks for.
const topMigrations = 30

// topFlags are the flags of "cascade top".
type topFlags struct {
	controlFlags
	once   bool
	every  time.Duration
	sort   string
	filter string
	model  string
	size   string
	ascii  bool
}

// newTop is "cascade top": a live view of a running fleet in the terminal.
func newTop(s *settings) *cobra.Command {
	f := &topFlags{}
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch a running fleet in the terminal: stages, load, migrations, proxies",
		Long: `Top shows a running fleet, live, also over SSH: whether it is well and what is not, the
stages on an axis of lengths, the replicas with their load, drains and health, the latest
migrations with the stalls of their clients, and the plan that each proxy has.

Keys: q quits, ? explains keys and columns, s sorts, / filters, Tab shows the next model,
the arrow keys scroll. While no control plane answers, the last answer stays, with since
when; it goes on once one answers.

--once prints one frame, and --json what it shows as one document, for scripts; both exit
with 1 for a fleet that is not ready, as "cascade status" does. Colours are those of the
terminal; NO_COLOR=1 leaves them out.`,
		Example: `  cascade top
  cascade top --control http://127.0.0.1:18001 --sort load --filter draining
  cascade top --once --size 160x50
  cascade top --json | jq -r '.replicas[] | select(.load > 0.9) | .id'`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return s.top(cmd, f) },
	}
	f.controlFlags.flags(c)
	c.Flags().BoolVar(&f.once, "once", false, "print one frame and exit")
	c.Flags().DurationVar(&f.every, "every", time.Second, fmt.Sprintf("interval of the requests to the control plane, at least %v", fleetview.MinEvery))
	c.Flags().StringVar(&f.sort, "sort", fleetview.ByStage.String(), "order of the replicas: stage, load, waiting, iteration or name")
	c.Flags().StringVar(&f.filter, "filter", "", "show only what has this text")
	c.Flags().StringVar(&f.model, "model", "", "the model to show first")
	c.Flags().StringVar(&f.size, "size", "", "WIDTHxHEIGHT of the frame that --once prints; without it the terminal's, or 80x24")
	c.Flags().BoolVar(&f.ascii, "ascii", false, "draw with ASCII characters; the default where LC_ALL, LC_CTYPE or LANG names no UTF-8")
	cli.CompleteFrom(c, "sort", []string{"stage", "load", "waiting", "iteration", "name"})
	return c
}

func (s *settings) top(cmd *cobra.Command, f *topFlags) error {
	order, err := fleetview.ParseOrder(f.sort)
	if err != nil {
		return cli.Usagef(cmd, "--sort %v", err)
	}
	if f.every < fleetview.MinEvery {
		return cli.Usagef(cmd, "--every %v: at least %v", f.every, fleetview.MinEvery)
	}
	width, height, err := s.frameSize(f.size)
	if err != nil {
		return cli.Usagef(cmd, "--size %v", err)
	}
	plane, err := f.connect(cmd)
	if err != nil {
		return err
	}
	source := topSource{plane}
	if !cmd.Flags().Changed("ascii") {
		f.ascii = !localeHasUTF8()
	}
	m := fleetview.New(cmd.Context(), fleetview.Config{
		Source: source, Every: f.every, Order: order, Filter: f.filter, Model: f.model, ASCII: f.ascii, Location: time.Local,
	}).Size(width, height)
	if f.once || s.JSON {
		return s.topOnce(m, source.Poll(cmd.Context()))
	}
	if !isTerminal(s.Stdout) {
		return cli.Usagef(cmd, "standard output is no terminal; --once prints one frame, --json one document")
	}
	_, err = tea.NewProgram(m, tea.WithContext(cmd.Context()), tea.WithOutput(s.Stdout), tea.WithoutSignalHandler()).Run()
	if errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrInterrupted) {
		return nil // by a signal, which the terminal has survived
	}
	return err
}

// topOnce prints one frame, or what it shows as JSON.
func (s *settings) topOnce(m fleetview.Model, a fleetview.Answer) error {
	if dial := (*net.OpError)(nil); errors.As(a.Err, &dial) && dial.Op == "dial" {
		return noControlPlane("http://"+a.Control, a.Err)
	}
	if a.Err != nil {
		return a.Err
	}
	if m = m.Receive(a); !m.HasModel() {
		return fmt.Errorf("--model %q: the fleet has no such model", m.ModelName())
	}
	if s.JSON {
		if err := s.Print(fleetview.Show(m)); err != nil {
			return err
		}
	} else if _, err := lipgloss.Fprintln(s.Stdout, fleetview.Draw(m).Styled()); err != nil { // as many colours as the output has
		return err
	}
	return fleetview.NotReadyError(a.Status)
}

// isTerminal reports whether an output is a terminal.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// frameSize returns the size of the frame: the flag's, the terminal's, or 80×24.
func (s *settings) frameSize(flag string) (width, height int, err error) {
	if flag != "" {
		w, h, _ := strings.Cut(flag, "x")
		if width, err = strconv.Atoi(w); err == nil {
			height, err = strconv.Atoi(h)
		}
		if err != nil || width < 1 || width > 1000 || height < 1 || height > 1000 {
			return 0, 0, fmt.Errorf("%q: must be a width and a height up to 1000, such as 160x50", flag)
		}
		return width, height, nil
	}
	if isTerminal(s.Stdout) {
		if width, height, err = term.GetSize(int(s.Stdout.(*os.File).Fd())); err == nil && width > 0 && height > 0 {
			return width, height, nil
		}
	}
	return 80, 24, nil
}

// localeHasUTF8 reports whether the environment says that the terminal shows UTF-8, or nothing.
func localeHasUTF8() bool {
	name := strings.ToUpper(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return name == "" || strings.Contains(name, "UTF-8") || strings.Contains(name, "UTF8")
}

// topSource asks the control plane that the flags name.
type topSource struct{ plane *controlPlane }

// Poll implements fleetview.Source.
func (s topSource) Poll(ctx context.Context) (a fleetview.Answer) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, topTimeout)
	defer cancel()
	a.Err = s.plane.ask(func(base *url.URL) (err error) {
		a.Control = base.Host
		if a.Status, err = topFetch[control.Status](ctx, controlRequest{base: base, path: "status"}); err != nil {
			return err
		}
		latest := controlRequest{base: base, path: "migrations", query: url.Values{"limit": {strconv.Itoa(topMigrations)}}}
		a.Migrations, err = topFetch[control.Migrations](ctx, latest)
		return err
	})
	a.At, a.Took = time.Now(), time.Since(start)
	return a
}

// topFetch gets one document.
func topFetch[T any](ctx context.Context, r controlRequest) (v T, err error) {
	_, body, err := r.exchange(ctx)
	var failed *url.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return v, fmt.Errorf("no answer within %v", topTimeout)
	case errors.As(err, &failed):
		return v, failed.Err
	case err != nil:
		return v, err
	}
	return decode[T](r.base, body)
}
