package vllmdemo

import "testing"

func TestRestChecks(t *testing.T) {
	for name, tt := range map[string]struct {
		all                  []seen
		equal, none, notOver bool
	}{
		"nothing asked":       {nil, false, false, false},
		"equal":               {[]seen{one(0, 0, "a", 96, 96, 130), one(1, 0, "a", 64, 96, 130)}, true, false, true},
		"a block too many":    {[]seen{one(0, 0, "a", 96, 64, 130)}, true, false, true},
		"two too many":        {[]seen{one(0, 0, "a", 96, 96, 130), one(1, 0, "a", 128, 64, 130)}, false, false, false},
		"two too few":         {[]seen{one(0, 0, "a", 32, 96, 130)}, false, false, true},
		"none":                {[]seen{one(0, 0, "a", 0, 0, 130), one(1, 0, "a", 0, 32, 130)}, true, true, true},
		"none, but cached":    {[]seen{one(0, 0, "a", 0, 64, 130)}, false, false, true},
		"a block of unknowns": {[]seen{one(0, 0, "a", 32, 0, 130)}, true, false, true},
	} {
		f := judge(tt.all)
		if got := f.restChecks("p")[0].OK; got != tt.equal {
			t.Errorf("%s: at rest %v, want %v", name, got, tt.equal)
		}
		if got := f.none("p", "w").OK; got != tt.none {
			t.Errorf("%s: none %v, want %v", name, got, tt.none)
		}
		if got := f.never("p", "w").OK; got != tt.notOver {
			t.Errorf("%s: never %v, want %v", name, got, tt.notOver)
		}
	}
}
