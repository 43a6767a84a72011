package mirror_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain looks for goroutines that are left, but for two of the server's, which outlive it for a while: one that waits for the
// other account to make a mirror's consumer, and one that tries to delete it, which that account does not export.
func TestMain(m *testing.M) {
	const stream = "github.com/nats-io/nats-server/v2/server.(*stream)."
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(stream+"tryDeleteSourcingConsumer.func1"), goleak.IgnoreAnyFunction(stream+"setupMirrorConsumer.func3"))
}
