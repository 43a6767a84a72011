// Verifier refolds every model request and publishes signed verdicts.
package main

import (
	"os"

	"github.com/refold-dev/refold/internal/program"
)

func main() { os.Exit(program.Main(program.Verifier())) }
