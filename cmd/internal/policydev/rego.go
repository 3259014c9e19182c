package policydev

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/open-policy-agent/opa/v1/version"

	"github.com/cascadeinfer/cascade/wasm/rego"
)

const regoExt = ".rego"

// buildRego compiles rules to a module, without the tests for "opa test". Errors have the
// file names as given.
func buildRego(ctx context.Context, paths []string, out string) (BuildResult, error) {
	b := BuildResult{File: out, Language: "rego", Compiler: "opa " + version.Version}
	files, size := map[string]string{}, int64(0)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test"+regoExt) {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return b, err
		}
		if size += info.Size(); size > rego.MaxSource {
			return b, fmt.Errorf("%s: the rules have more than %d bytes", path, rego.MaxSource)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return b, err
		}
		files[path] = string(text)
	}
	if len(files) == 0 {
		return b, fmt.Errorf("%s has only tests of rules", filepath.Dir(paths[0]))
	}
	code, err := rego.Build(ctx, files)
	if err != nil {
		return b, err
	}
	return b.write(code)
}
