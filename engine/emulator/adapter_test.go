package emulator

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tidwall/gjson"
)

// A LoRA adapter has its own name and its own text, and shares no cached prefix with its base
// model.
func TestAdapters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{Model: "base", Adapters: []string{"poet"}})
		defer stop()
		synctest.Wait()
		prompt := strings.Repeat("the same prompt, ", 40)
		ask := func(model string) completion {
			return complete(t, e, fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":20,"ignore_eos":true,"return_token_ids":true}`, model, prompt))
		}
		base, poet := ask("base").Choices[0].TokenIDs, ask("poet")
		switch {
		case slices.Equal(base, poet.Choices[0].TokenIDs):
			t.Error("the adapter answers like its base model")
		case poet.Usage.Details.Cached != 0:
			t.Error("the adapter found the base model's prefix in the cache")
		}
		for _, name := range [...]string{"base", "poet"} {
			again := ask(name)
			if want := map[string]any{"base": base, "poet": poet.Choices[0].TokenIDs}[name]; fmt.Sprint(again.Choices[0].TokenIDs) != fmt.Sprint(want) {
				t.Errorf("%s: the text depends on what is cached", name)
			}
			if again.Usage.Details.Cached == 0 {
				t.Errorf("%s: its own prefix is not found again", name)
			}
		}
		if w := serveRequest(e, post("/v1/completions", `{"model":"other","prompt":"x"}`)); w.Code != http.StatusNotFound {
			t.Errorf("an adapter that is not loaded: status %d", w.Code)
		}
		r := post("/v1/models", "")
		r.Method = "GET"
		if got := gjson.Get(serveRequest(e, r).Body.String(), `data.#(id=="poet").parent`).String(); got != "base" {
			t.Errorf("the adapter's parent in /v1/models is %q", got)
		}
	})
}
