// Command bench measures what the project promises about speed and prints it as ratios against baselines that are
// taken in the same run, on the same machine, interleaved with what is measured. It asserts nothing: times depend on
// the machine, and whoever reads the table judges.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	b := bench{out: os.Stdout}
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	flags.IntVar(&b.events, "events", 25_000, "events of the generated session")
	flags.IntVar(&b.rounds, "rounds", 9, "rounds of each measurement")
	flags.Parse(os.Args[1:]) //nolint:errcheck // exits on an error
	if b.events < 1_000 || b.rounds < 3 {
		fmt.Fprintln(os.Stderr, "bench: want at least 1000 events and 3 rounds")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := b.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
