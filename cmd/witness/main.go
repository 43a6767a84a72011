// Witness passes calls on to a provider and keeps signed receipts of the bytes that passed.
package main

import (
	"os"

	"github.com/refold-dev/refold/internal/program"
)

func main() { os.Exit(program.Main(program.Witness())) }
