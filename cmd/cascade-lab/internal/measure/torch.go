package measure

import (
	"context"
	_ "embed"
	"fmt"
	"os/exec"
)

// torchOwner is an owner in Python.
//
//go:embed torch_owner.py
var torchOwner string

// TorchCommand returns the command of an owner whose pool is PyTorch's, for a Python
// interpreter that has it. Without PyTorch the owner's Hello has an error.
func TorchCommand(python string, c Config) func(ctx context.Context) *exec.Cmd {
	return func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, python, "-c", torchOwner, "--device", fmt.Sprint(c.Ordinal), "--bytes", fmt.Sprint(c.Shape.PoolBytes()))
	}
}
