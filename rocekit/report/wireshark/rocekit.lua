-- rocekit beside Wireshark's own fields: what each RoCE packet is in its story.
--
-- A post-dissector that reads the sidecar of `rocekit annotate --sidecar`. Fields to filter and colour by:
--   rocekit.transfer  rocekit.connection  rocekit.role  rocekit.round  rocekit.cause
--   rocekit.finding (one for each)  rocekit.severity  rocekit.story
--
--   tshark -X lua_script:rocekit.lua -o rocekit.sidecar:x.rocekit.tsv -r x.pcapng -Y 'rocekit.round > 1'
--
-- In Wireshark: put this file into the folder of personal Lua plugins, and name the sidecar in the preferences of the
-- protocol rocekit. A sidecar of another capture is noticed by its times, and nothing is shown of it.

local rocekit = Proto("rocekit", "rocekit")

local f = {
    connection = ProtoField.uint32("rocekit.connection", "Connection"),
    transfer = ProtoField.uint32("rocekit.transfer", "Transfer"),
    role = ProtoField.string("rocekit.role", "Role"),
    round = ProtoField.uint32("rocekit.round", "Round"),
    cause = ProtoField.string("rocekit.cause", "Sent again because of"),
    finding = ProtoField.string("rocekit.finding", "Finding"),
    severity = ProtoField.string("rocekit.severity", "Worst severity"),
    story = ProtoField.string("rocekit.story", "Story"),
    problem = ProtoField.string("rocekit.problem", "Problem"),
}
rocekit.fields = { f.connection, f.transfer, f.role, f.round, f.cause, f.finding, f.severity, f.story, f.problem }
rocekit.prefs.sidecar = Pref.string("Sidecar", "", "The file that rocekit annotate --sidecar wrote for this capture")

local frames, known, problem = {}, nil, nil

local function split(line)
    local cells = {}
    for cell in (line .. "\t"):gmatch("(.-)\t") do cells[#cells + 1] = cell end
    return cells
end

local function load(path)
    frames, known, problem = {}, path, nil
    if path == "" then return end
    local file = io.open(path, "r")
    if not file then problem = "the sidecar cannot be opened: " .. path return end
    if file:read("*l") ~= "#rocekit-sidecar/1" then
        problem = "not a sidecar of this version of rocekit: " .. path
        file:close()
        return
    end
    file:read("*l")
    for line in file:lines() do
        local cells = split(line)
        frames[tonumber(cells[1])] = cells
    end
    file:close()
end

function rocekit.init()
    load(rocekit.prefs.sidecar)
end

function rocekit.dissector(buffer, pinfo, tree)
    if known ~= rocekit.prefs.sidecar then load(rocekit.prefs.sidecar) end
    if problem then
        tree:add(rocekit):add(f.problem, problem)
        return
    end
    local cells = frames[pinfo.number]
    if not cells then return end
    local branch = tree:add(rocekit)
    -- A double holds times of today to a quarter of a microsecond.
    if math.abs(tonumber(pinfo.abs_ts) - tonumber(cells[2])) > 0.000002 then
        branch:add(f.problem, "the sidecar is of another capture")
        return
    end
    local function add(field, text, value)
        if text ~= "" then branch:add(field, value or text) end
    end
    add(f.connection, cells[3], tonumber(cells[3]))
    add(f.transfer, cells[4], tonumber(cells[4]))
    add(f.role, cells[5])
    add(f.round, cells[6], tonumber(cells[6]))
    add(f.cause, cells[7])
    for rule in cells[8]:gmatch("[^,]+") do branch:add(f.finding, rule) end
    add(f.severity, cells[9])
    add(f.story, cells[10])
    branch:append_text(": " .. cells[10])
end

register_postdissector(rocekit)
