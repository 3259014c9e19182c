// Package known lists the engines that Cascade knows. It is the only list.
package known

import (
	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/dialect/sglang"
	"github.com/cascadeinfer/cascade/migrator/dialect/vllm"
)

// Dialects returns the dialects of the known engines. The first is spoken with an engine that does not say
// of which kind it is.
func Dialects() []dialect.Dialect { return []dialect.Dialect{vllm.Dialect{}, sglang.Dialect{}} }
