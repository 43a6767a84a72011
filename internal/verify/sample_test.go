package verify_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/refold-dev/refold/pkg/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newKey(t testing.TB) *audit.Key {
	t.Helper()
	key, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}
