package rights_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/refold-dev/refold/test/fleet"
)

// row is a row of the table of permissions in docs/format/streams.md, with every subject in full.
type row struct{ publish, subscribe []string }

// documented returns the rows by the name of who they are for.
func documented(t *testing.T) map[string]row {
	t.Helper()
	page, err := os.ReadFile("../../docs/format/streams.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "## Permissions\n")
	if !ok {
		t.Fatal("the page has no permissions")
	}
	rows := make(map[string]row)
	quoted, as := regexp.MustCompile("`([^`]+)`"), regexp.MustCompile(`as a ([a-z]+)`)
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || strings.Contains(line, "---") || strings.Contains(line, "| who |") {
			continue
		}
		var r row
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			r.publish = append(r.publish, m[1])
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[3], -1) {
			r.publish = append(r.publish, "$JS.API."+m[1])
		}
		if m := as.FindStringSubmatch(cells[3]); m != nil {
			r.publish = append(r.publish, rows[m[1]].publish...)
		}
		r.subscribe = []string{fleet.Inbox(strings.TrimSpace(cells[1])) + ".>"}
		for _, m := range quoted.FindAllStringSubmatch(cells[4], -1) {
			r.subscribe = append(r.subscribe, m[1])
		}
		slices.Sort(r.publish)
		slices.Sort(r.subscribe)
		rows[strings.TrimSpace(cells[1])] = r
	}
	return rows
}

// TestExample compares the users of the example configuration with the table.
func TestExample(t *testing.T) {
	rows := documented(t)
	users := 0
	for _, u := range fleet.Options(t, nil).Users {
		if u.Permissions != nil && u.Permissions.Response != nil {
			t.Errorf("%s may answer on any subject that a question to it names", u.Username)
		}
		if u.Account.GetName() != "FLEET" {
			continue
		}
		users++
		want, ok := rows[u.Username]
		if !ok {
			t.Errorf("the configuration has the user %s, the table does not", u.Username)
			continue
		}
		got := row{slices.Clone(u.Permissions.Publish.Allow), slices.Clone(u.Permissions.Subscribe.Allow)}
		slices.Sort(got.publish)
		slices.Sort(got.subscribe)
		if !slices.Equal(got.publish, want.publish) {
			t.Errorf("%s publishes to\n%v, the table says\n%v", u.Username, got.publish, want.publish)
		}
		if !slices.Equal(got.subscribe, want.subscribe) {
			t.Errorf("%s subscribes to\n%v, the table says\n%v", u.Username, got.subscribe, want.subscribe)
		}
		if len(u.Permissions.Publish.Deny)+len(u.Permissions.Subscribe.Deny) > 0 {
			t.Errorf("%s is denied something: the table only grants", u.Username)
		}
	}
	if users != len(rows) {
		t.Errorf("the configuration has %d users, the table %d rows", users, len(rows))
	}
}

// TestPlaceholders wants no password in the example configuration.
func TestPlaceholders(t *testing.T) {
	text, err := os.ReadFile(fleet.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(text)) {
		if _, value, ok := strings.Cut(line, "password: "); ok {
			found++
			if !strings.HasPrefix(value, "$REFOLD_") {
				t.Errorf("%s", line)
			}
		}
	}
	if want := len(fleet.Options(t, nil).Users); found != want {
		t.Errorf("%d passwords for %d users", found, want)
	}
}

// TestMirrorPage wants what the page on mirrors shows of the configuration to stand there as it is, and its table to name the
// users of the auditor's account.
func TestMirrorPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/ops/mirror.md")
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(fleet.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for i, block := range strings.Split(string(page), "```\n") {
		if i%2 == 1 && strings.Contains(block, "service:") {
			shown++
			if !strings.Contains(string(config), block) {
				t.Errorf("the configuration does not hold\n%s", block)
			}
		}
	}
	if shown != 2 {
		t.Errorf("the page shows %d parts of the configuration, want exports and imports", shown)
	}
	for _, u := range fleet.Options(t, nil).Users {
		if u.Account.GetName() == "AUDIT" && !strings.Contains(string(page), "| `"+u.Username+"` |") {
			t.Errorf("the page does not speak of the user %s", u.Username)
		}
	}
}
