package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/lab"
)

// maxExposure is what systemd-analyze security may say of a unit, in tenths; 0 is best. What is left is the network, the host's files to
// read, and Unix sockets.
const maxExposure = "13"

const installed = "/usr/local/bin/kvsteer"

// units copies the units into a folder, with a binary that exists.
func units(t *testing.T) (dir string, names []string) {
	t.Helper()
	found, err := filepath.Glob("systemd/*.service")
	if err != nil || len(found) != 2 {
		t.Fatalf("units %q: %v", found, err)
	}
	dir = t.TempDir()
	binary := kvsteer(t)
	for _, file := range found {
		text := read(t, file)
		if !strings.Contains(text, "ExecStart="+installed+" ") {
			t.Fatalf("%s does not start %s", file, installed)
		}
		name := filepath.Base(file)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, installed, binary)), 0o644); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return dir, names
}

// analyze runs systemd-analyze in a folder.
func analyze(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(program(t, "KVSTEER_SYSTEMD_ANALYZE", "systemd.sh"), args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// verify is an error when systemd finds something in units.
func verify(t *testing.T, dir string, names ...string) string {
	t.Helper()
	// Manuals need not be installed. Other units of this host are none of ours.
	out, err := analyze(t, dir, append([]string{"verify", "--man=no", "--recursive-errors=no"}, names...)...)
	if err != nil && out == "" {
		t.Fatal(err)
	}
	return out
}

// TestUnits holds that systemd takes the units without a warning, and how little they may do.
func TestUnits(t *testing.T) {
	dir, names := units(t)
	if out := verify(t, dir, names...); out != "" {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
	for _, name := range names {
		out, err := analyze(t, dir, "security", "--offline=true", "--no-pager", "--threshold="+maxExposure, name)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if !regexp.MustCompile(`Overall exposure level for ` + name + `: \d`).MatchString(out) {
			t.Errorf("%s was not judged:\n%s", name, out)
		}
	}
}

// TestUnitsAreChecked holds that the checks find what they are for.
func TestUnitsAreChecked(t *testing.T) {
	for _, c := range []struct {
		name, old, new, verify string // verify is what systemd says; "" stands for a finding of its security check
	}{
		{"an unknown key", "RestartSec=1", "RestartSecs=1", "RestartSecs"},
		{"an unknown group of system calls", "@system-service", "@system-services", "system-services"},
		{"a binary that is not there", "ExecStart=", "ExecStart=/nowhere", "not executable"},
		{"a word that is no boolean", "PrivateUsers=yes", "PrivateUsers=maybe", "maybe"},
		{"all capabilities", "CapabilityBoundingSet=\n", "", ""},
		{"every system call", "SystemCallFilter=", "#", ""},
		{"every kind of socket", "RestrictAddressFamilies=", "#", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, names := units(t)
			for _, name := range names {
				file := filepath.Join(dir, name)
				text := strings.ReplaceAll(read(t, file), c.old, c.new)
				if text == read(t, file) {
					t.Fatalf("%s has no %q", name, c.old)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				if c.verify != "" {
					if out := verify(t, dir, name); !strings.Contains(out, c.verify) {
						t.Errorf("%s: systemd-analyze verify says %q, want %q", name, out, c.verify)
					}
				} else if out, err := analyze(t, dir, "security", "--offline=true", "--no-pager", "--threshold="+maxExposure, name); err == nil {
					t.Errorf("%s passes:\n%s", name, out)
				}
			}
		})
	}
}

// unit reads the values of a key of a unit's Service section.
func unit(t *testing.T, name, key string) []string {
	t.Helper()
	var values []string
	for _, m := range regexp.MustCompile(`(?m)^`+key+`=(.*)$`).FindAllStringSubmatch(read(t, "systemd/"+name), -1) {
		values = append(values, m[1])
	}
	if len(values) == 0 {
		t.Fatalf("%s has no %s", name, key)
	}
	return values
}

// TestUnitsAgree holds that the units fit the program that they start, and the other files of their folder.
func TestUnitsAgree(t *testing.T) {
	for name, command := range map[string]string{"kvsteer-router.service": "serve", "kvsteer-node.service": "node"} {
		words := strings.Fields(unit(t, name, "ExecStart")[0])
		if len(words) != 4 || words[1] != command || words[2] != "--config" || !strings.HasPrefix(words[3], "/etc/kvsteer/") {
			t.Errorf("%s starts %q", name, words)
		}
		run(t, ".", kvsteer(t), command, "--help")
		// A unit that is replaced while it stops is killed: it must have the time that the configuration's defaults take, and more.
		stop, err := strconv.Atoi(unit(t, name, "TimeoutStopSec")[0])
		defaults := config.Default()
		if least := 5*time.Second + time.Duration(defaults.Drain) + 10*time.Second; err != nil || time.Duration(stop)*time.Second < least {
			t.Errorf("%s: TimeoutStopSec=%d, want at least %v: %v", name, stop, least, err)
		}
		secrets := strings.TrimPrefix(unit(t, name, "LoadCredential")[0], "secret:")
		if !slices.Contains(strings.Split(read(t, "systemd/tmpfiles.conf"), "\n"), "d "+secrets+" 0700 root root") {
			t.Errorf("%s reads secrets from %s, which nothing makes", name, secrets)
		}
	}
	if user := unit(t, "kvsteer-router.service", "User")[0]; !strings.Contains(read(t, "systemd/sysusers.conf"), "u "+user+" ") {
		t.Errorf("nothing makes the user %s", user)
	}
}

// TestUnitsBesideEachOther holds that the two units differ in what they must differ in alone: a change of one's sandbox is one of both.
func TestUnitsBesideEachOther(t *testing.T) {
	sandbox := func(name string) string {
		text := read(t, "systemd/"+name)
		at := strings.Index(text, "NoNewPrivileges=")
		if at < 0 {
			t.Fatalf("%s has no sandbox", name)
		}
		return text[at:]
	}
	if a, b := sandbox("kvsteer-router.service"), sandbox("kvsteer-node.service"); a != b {
		t.Errorf("the sandboxes differ:\n%s\n%s", a, b)
	}
}

// TestUnitsHaveConfigurations tries the configurations that README.md shows for the units.
func TestUnitsHaveConfigurations(t *testing.T) {
	shown := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(read(t, "systemd/README.md"), -1)
	if len(shown) != 2 {
		t.Fatalf("README.md shows %d configurations", len(shown))
	}
	dir := t.TempDir()
	ca, err := lab.NewAuthority(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue("node", "10.0.0.11")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"admin.token": "a-token-of-these-tests-alone\n", "feed.token": "a-token-of-these-tests-too\n", "ca.pem": read(t, ca.File), "node.pem": read(t, cert), "node.key": read(t, key),
	} {
		if err := os.WriteFile(filepath.Join(dir, "secret_"+name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, tt := range []struct {
		unit, command, good string
		wants               []string
	}{
		{"kvsteer-node.service", "node", "is good: node ", []string{"state_dir: /var/lib/" + unit(t, "kvsteer-node.service", "StateDirectory")[0] + "\n"}},
		{"kvsteer-router.service", "serve", "is good: 1 pool, 1 endpoint, nodes: 1", []string{"unix:/run/" + unit(t, "kvsteer-router.service", "RuntimeDirectory")[0] + "/"}},
	} {
		text, credentials := shown[i][1], "/run/credentials/"+tt.unit+"/"
		for _, want := range append(tt.wants, credentials+"secret_") {
			if !strings.Contains(text, want) {
				t.Errorf("the configuration of %s has no %q", tt.unit, want)
			}
		}
		text = strings.NewReplacer(credentials, dir+"/", "/run/kvsteer", dir, "/var/lib/kvsteer-node", dir).Replace(text)
		file := filepath.Join(dir, tt.command+".yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out := run(t, ".", kvsteer(t), tt.command, "--check", "--config", file); !strings.Contains(out, tt.good) {
			t.Errorf("%s --check says:\n%s", tt.command, out)
		}
	}
}
