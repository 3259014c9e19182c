package device

import (
	"errors"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestLoad(t *testing.T) {
	if _, err := Load("libnothing-at-all.so.7"); errors.Is(err, ErrNoCgo) {
		testkit.Skip(t, testkit.Unavailable{What: err.Error(), Remedy: "set CGO_ENABLED=1", InCI: true})
	} else if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "libnothing-at-all.so.7") {
		t.Errorf("a library that is not there: %v", err)
	}
	lib := testkit.Must(Load("libc.so.6"))
	if p, err := lib.Symbol("getpid"); err != nil || p == nil {
		t.Errorf("%v, %v", p, err)
	}
	var missing *SymbolError
	if _, err := lib.Symbol("getnothing"); !errors.As(err, &missing) || missing.Symbol != "getnothing" || missing.Library != "libc.so.6" {
		t.Errorf("a symbol that is not there: %v", err)
	}
}
