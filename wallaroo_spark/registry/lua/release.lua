-- KEYS leases. ARGV 1 the lease, as JSON.
local mine = cjson.decode(ARGV[1])
local record = read(KEYS[1], mine.slot)
if record and compare(record, mine) == 0 and record.holder == mine.holder then
  record.holder, record.connect, record.flight = '', '', ''
  write(KEYS[1], record, 0)
end
