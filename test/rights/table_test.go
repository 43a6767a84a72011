package rights_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/refold-dev/refold/test/fleet"
)

// row is a row of the table of permissions in docs/format/streams.md, with every subject in full.
type row struct {
	account                  string
	publish, deny, subscribe []string
}

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
		if len(cells) != 7 || strings.Contains(line, "---") || strings.Contains(line, "| who |") {
			continue
		}
		r := row{account: strings.Trim(cells[2], " `")}
		for _, m := range quoted.FindAllStringSubmatch(cells[3], -1) {
			r.publish = append(r.publish, m[1])
		}
		asked, denied, _ := strings.Cut(cells[4], "but not")
		for _, m := range quoted.FindAllStringSubmatch(asked, -1) {
			r.publish = append(r.publish, "$JS.API."+m[1])
		}
		for _, m := range quoted.FindAllStringSubmatch(denied, -1) {
			r.deny = append(r.deny, "$JS.API."+m[1])
		}
		if m := as.FindStringSubmatch(asked); m != nil {
			r.publish = append(r.publish, rows[m[1]].publish...)
		}
		r.subscribe = []string{fleet.Inbox(strings.TrimSpace(cells[1])) + ".>"}
		for _, m := range quoted.FindAllStringSubmatch(cells[5], -1) {
			r.subscribe = append(r.subscribe, m[1])
		}
		slices.Sort(r.publish)
		slices.Sort(r.deny)
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
		account := u.Account.GetName()
		if account == "SYS" || strings.HasPrefix(account, "AUDIT") {
			continue
		}
		users++
		want, ok := rows[u.Username]
		if !ok {
			t.Errorf("the configuration has the user %s, the table does not", u.Username)
			continue
		}
		got := row{
			account, slices.Sorted(slices.Values(u.Permissions.Publish.Allow)), slices.Sorted(slices.Values(u.Permissions.Publish.Deny)),
			slices.Sorted(slices.Values(u.Permissions.Subscribe.Allow)),
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(row{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: the configuration differs from the table (-table +configuration)\n%s", u.Username, diff)
		}
		if len(u.Permissions.Subscribe.Deny) > 0 {
			t.Errorf("%s is denied to hear something: the table does not say that", u.Username)
		}
	}
	if users != len(rows) {
		t.Errorf("the configuration has %d users, the table %d rows", users, len(rows))
	}
}

// inside are the subjects that stay in a role's account, or that others import from it.
func inside(user string) []string {
	if user == "worker" {
		return []string{"live.>", "worker.*", fleet.Inbox(user) + ".>"}
	}
	return []string{fleet.Inbox(user) + ".>"}
}

// TestAccounts wants every user alone in an account. An account with the fleet's streams imports nothing. A role's has no
// streams, and imports what the role publishes to and hears, and no more.
func TestAccounts(t *testing.T) {
	f := fleet.Start(t, nil)
	alone := make(map[string]string)
	for _, u := range fleet.Options(t, nil).Users {
		account := u.Account.GetName()
		if other, ok := alone[account]; ok {
			t.Errorf("%s and %s are both in %s", u.Username, other, account)
		}
		alone[account] = u.Username
		if account == "SYS" {
			continue
		}
		info := f.Account(account)
		var services, streams []string
		for _, i := range info.Imports {
			switch {
			case i.Account == "SYS": // every account's own
			case i.Type.String() == "service":
				services = append(services, string(i.LocalSubject))
			default:
				streams = append(streams, string(i.Subject))
			}
		}
		holdsStreams := account == "AUDIT" || fleet.Makers()[u.Username] != nil
		if info.JetStream != holdsStreams {
			t.Errorf("%s has JetStream: %v", account, info.JetStream)
		}
		if account == "AUDIT" { // imports what a mirror needs: TestMirrorPage
			continue
		}
		var wantServices, wantStreams []string
		if !holdsStreams {
			own := func(subject string) bool { return slices.Contains(inside(u.Username), subject) }
			wantServices = slices.DeleteFunc(slices.Clone(u.Permissions.Publish.Allow), own)
			wantStreams = slices.DeleteFunc(slices.Clone(u.Permissions.Subscribe.Allow), own)
		}
		for _, c := range []struct {
			what      string
			got, want []string
		}{{"services", services, wantServices}, {"streams", streams, wantStreams}} {
			if diff := cmp.Diff(slices.Sorted(slices.Values(c.want)), slices.Sorted(slices.Values(c.got)), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s imports other %s than its user may use (-user +account)\n%s", account, c.what, diff)
			}
		}
	}
	if _, ok := alone["API"]; ok || f.Account("API").JetStream {
		t.Error("API has a user or streams")
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
		if i%2 == 1 && (strings.Contains(block, "service:") || strings.Contains(block, "stream:")) {
			shown++
			if !strings.Contains(string(config), block) {
				t.Errorf("the configuration does not hold\n%s", block)
			}
		}
	}
	if shown != 2 {
		t.Errorf("the page shows %d parts of the configuration, want the imports of AUDIT and of AUDIT_MIRROR", shown)
	}
	for _, u := range fleet.Options(t, nil).Users {
		if strings.HasPrefix(u.Account.GetName(), "AUDIT") && !strings.Contains(string(page), "| `"+u.Username+"` |") {
			t.Errorf("the page does not speak of the user %s", u.Username)
		}
	}
}
